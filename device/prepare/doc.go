// SPDX-License-Identifier: MPL-2.0

// Package prepare makes the node's devices ready for their tasks: it gives each unit of a
// plan the things that its tasks need, and reports missing ones.
//
//	plan ──► units ──► Prepare ──► units with CDI names, MPS daemons, time slices, …
//	                      │        and with faults and cordons
//	                      ▼
//	        fleet (compute modes, partitions, resets), device/mps, files on the node
//
// A pass waits for no hardware: what takes long is done in the background, and asks for
// another pass when it is done. What fails is a fault of the device that it concerns, and
// is tried again.
package prepare
