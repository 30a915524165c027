// Package decide answers what a job's groups ask for: where, or why not. It is pure
// over a transaction of the cluster's state: no network, no clock, no lock.
//
//	admit.Ask ──► parts: place.Request per device block
//	                │  quota, order of what waits, gangs, reservations
//	                ▼
//	            place.Planner on state.Tx.Snapshot
//	                │
//	                ▼
//	            blocks.Placed ──► admit.Decision, record.Group
//
// [Job] decides about a job as it is submitted, [Revise] about one that is
// registered, [Evict] and [EvictForAll] who has to go so that one can start,
// [Reservation] what is kept free. What was placed is assumed in the transaction, so
// that the next decision sees it.
package decide
