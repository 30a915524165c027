// SPDX-License-Identifier: MPL-2.0

// Package occupancy tells who holds a node's devices.
//
//	leases (tasks of the containerd driver) ─────────────┐
//	                                                     ├──► Holder of each device
//	Reserve ──► Reservations, until no process has one ──┘
//	              ▲
//	/proc/*/environ: the reservation with which a process of any driver began
//
//	/proc/*/cgroup ──► CgroupMemory ──► whose a process is, or was
package occupancy
