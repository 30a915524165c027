// SPDX-License-Identifier: MPL-2.0

// Package decide answers what a job's groups ask for: where, or why not. It is pure
// over a transaction of the cluster's state: no network, no clock, no lock.
//
// An ask goes one way, and what a step has found does not change in those after it:
//
//	admit.Ask
//	    │  the request      groupAsk: its queue, and a place.Request per device block.
//	    │                   shape, known, awaited
//	    ▼
//	    │  the quota        quotaHold; payable, for what Nomad starts by itself
//	    ▼
//	    │  whose turn it is Window: which nodes are kept for what goes first.
//	    │                   endsBefore, leavesHeadroom
//	    ▼
//	    │  where            place.Planner on state.Tx.Snapshot; claim, holdGang
//	    ▼
//	blocks.Placed
//	    │  the answer       settle or held, explain, outcome
//	    ▼
//	admit.Decision, record.Group
//
// decider is this sequence for one group: decideNew where nothing of it runs, redecide
// beside what does, and both lead to fill. Where a step finds a reason to wait, an
// [admit.Hold], the rest but the answer is left out.
//
// [Job] decides about a job as it is submitted, [Revise] about one that is
// registered, [Evict] and [EvictForAll] who has to go so that one can start,
// [Reservation] the room kept free. Placed work is assumed in the transaction, so
// that the next decision sees it.
package decide
