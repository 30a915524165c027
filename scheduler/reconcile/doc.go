// SPDX-License-Identifier: MPL-2.0

// Package reconcile brings the cluster into line with the decisions, over and over:
// it is the service's control loop.
//
//	every second, while this replica leads:
//	    expire promises and reservations
//	    [Finder.Next]: what waits and may go ──► revise its job
//	                   what drifted         ──► record and registration together
//	                   nodes that were left out for another job ──► take them back in
//	                   work over its quota, a gang in part      ──► hold, then stop
//	                   what waits for room  ──► evict for it, then revise
//	every monitor_update_interval: read the GPUs' utilization
//
// Acting on Nomad is always the same: read the job, revise its decision, write
// the decision into the job, register it if it is still as it was read. What
// was interrupted halfway is seen, and done again, in the next round; nothing
// is remembered that the next leader would need.
package reconcile
