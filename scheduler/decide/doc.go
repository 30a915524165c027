// Package decide answers what a job's groups ask for: where, or why not.
//
//	nomad ── changes ──► Book ── snapshot ──► place.Planner
//	                      ▲                        │
//	            flights: what was promised and     ▼
//	            Nomad does not show yet       Decider ──► admit.Decision
//	                                               │
//	                                               ▼
//	                             Record in a Nomad Variable, compare-and-set
//
// The Book is what the service believes: Nomad's nodes and allocs, plus the
// flights. Nomad stays the referee. A belief that was wrong costs a worse
// placement, never a double booking.
//
// A decision is recorded under the key of what was asked, because Nomad
// replaces every alloc whose device block changes: the same ask must come out
// as before, while the rest of the job may change.
package decide
