// Package state is what the service believes of the cluster: Nomad's nodes, jobs
// and allocs, what was decided about them, and what was promised since.
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
// What fits where is for [place.Snapshot] alone to say.
package state
