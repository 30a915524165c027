package hardware

// Event is a message of the driver about one device.
type Event struct {
	// UUID is the physical GPU's; empty when the driver names none, which
	// concerns every GPU.
	UUID string
	// XID is NVIDIA's number of the error.
	XID uint64
}
