// SPDX-License-Identifier: MPL-2.0

// Package state is what the service believes of the cluster: Nomad's nodes, jobs
// and allocs, the decisions about them, and the promises since.
//
//	nomad ── changes ──► State ─┬─ View(func(*Reader))         who shows, who asks
//	                            └─ Update(func(*Tx) error)     who decides
//
// There is one lock, and it is in the type: whoever has a Reader or a Tx has it.
// Neither may be kept.
//
// A promise is an assumed alloc: room that was given to an alloc which Nomad does
// not show yet. It counts like one that runs until Nomad shows the alloc, says that
// there is no room for it, or says nothing for too long. Nomad stays the referee. A
// belief that was wrong costs a worse placement, never a double booking.
//
// A [Reader] has three handles, each made of parts. A part has fields and methods of its own in a
// file of its name, and can be read without the rest: it knows the clock, the settings and some of
// the parts above it, never a Reader.
//
//	clock, settings        the time, the configuration
//
//	Cluster                Nomad's view of the cluster, and the measured use of GPUs
//	  contact              when Nomad was heard
//	  nodes, jobs, allocs  as Nomad lists them
//	  checkpoints, wanted  since when work is saved, since when it was wanted
//	  lifetimes            how long work runs
//	  measurements, learned, unused    what GPUs do, what tasks use, who uses nothing
//
//	Capacity               usages booked on the nodes
//	  books                usages, and the planners
//	  promises, reservations    room that is not in Nomad yet, or never will be
//	  disruptions          evictions and moves, and how many more are allowed
//	  rooms                how well each node could take the requests
//
//	Queue                  waiting groups and their decisions
//	  records              decisions, and how they differ from the registered jobs
//	  returns              what failed and is started again
//	  completions          completed allocs of batch jobs that go on (completed.go)
//	  quotas, waitlist     what queues may hold, whose turn it is
//	  history, reasons, starts    what people are shown: decisions, events, why something waits
//
// The handles only read. A [Tx] changes several at once, for each thing that happens: Nomad tells of
// something (apply.go) or measured it (use.go), something is promised (assume.go), booked
// (booking.go) or done (handover.go), or an earlier leader did (recall.go). It alone has the values
// taken out of the state once: departed, handover, turnover. A test counts the methods of each.
//
// What fits where is for [place.Snapshot] alone to say.
package state
