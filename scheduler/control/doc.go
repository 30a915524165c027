// Package control does what was decided, over and over: it is the service's
// loop.
//
//	every change, and every second, while this replica leads:
//	    expire promises and reservations
//	    first waiting group that can be helped ──► revise its job
//	                                          └──► evict for it, then revise
//	    nodes that were left out for somebody  ──► take them back in
//	every monitor_update_interval: read the GPUs' utilisation
//
// Acting on Nomad is always the same: read the job, revise its decision, write
// the decision into the job, register it if it is still as it was read. What
// was interrupted halfway is seen, and done again, in the next round; nothing
// is remembered that the next leader would need.
package control
