// Package prepare makes the node's devices ready for their tasks: it gives each unit of a
// plan what its tasks need, and says what is missing.
//
//	plan ──► units ──► Prepare ──► units with CDI names, MPS daemons, time slices, …
//	                      │        and with the faults and cordons of what is not ready
//	                      ▼
//	        fleet (compute modes, partitions, resets), device/mps, files on the node
//
// A pass waits for no hardware: what takes long is done in the background, and asks for
// another pass when it is done. What fails is a fault of the device that it concerns, and
// is tried again.
package prepare
