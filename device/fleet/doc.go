// SPDX-License-Identifier: MPL-2.0

// Package fleet is a machine's devices, of all vendors, as if they were one vendor's.
//
//	config ──► Open ──► a backend for each vendor (device/nvidia, amd, intel, ascend; on a
//	                    simulated machine device/sim beneath them)
//	                       │
//	                    Platform: Survey, Watch, Reading, Processes, and the actions on
//	                    a device, each asked of the backend that has seen it
//
// Trouble with one vendor's devices does not reach another's.
package fleet
