// SPDX-License-Identifier: MPL-2.0

package hardware

// Event is a message of the driver about one device.
type Event struct {
	// UUID is the physical GPU's; empty when the driver names none, which
	// concerns every GPU of the vendor.
	UUID, Vendor string
	// GI and CI are the numbers of the MIG instance that it concerns alone, Absent
	// where it concerns the whole GPU.
	GI, CI int
	// Name is its subject, in a word or two: "XID", "memory retirement".
	Name string
	// XID is NVIDIA's number of the error, 0 for events of another kind.
	XID uint64
	// Problem is the fault since the event, where no survey will see it. Its
	// Code begins with EventCode; it is empty where the next survey tells.
	Problem Problem
}

// EventCode begins the code of a problem that only an event tells of.
const EventCode = "event-"
