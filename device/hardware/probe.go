// SPDX-License-Identifier: MPL-2.0

package hardware

// ProbeTarget is a device that is tried with a program.
type ProbeTarget struct {
	// Owner is the physical GPU, UUID what a program can use of it: a MIG instance,
	// or itself.
	Owner, UUID string
	// PipeDir, LogDir and ShmDir are those of its MPS daemon; empty without one.
	PipeDir, LogDir, ShmDir string
}
