// SPDX-License-Identifier: MPL-2.0

package gpu

// The names of the device statistics that say what the task of an instance uses of its
// GPU. Nomad passes them on from the device plugin to whoever reads a node's statistics.
const (
	StatTaskMemory  = "Task memory"  // of all its processes, in MiB
	StatTaskCompute = "Task compute" // in milli: 1000 is the GPU
	StatTaskSeat    = "Task seat"    // Seat.Where, of a task with a seat
	// Since when it is there, and from when on it comes before all others; RFC 3339, UTC.
	StatTaskSeatSince = "Task seat since"
	StatTaskSeatFirst = "Task seat first"
	StatTaskSeatWhy   = "Task seat reason" // why it is there, or what hinders it
)
