// SPDX-License-Identifier: MPL-2.0

// Package sim is a machine with NVIDIA GPUs that does not exist: an
// implementation of go-nvml's nvml.Interface that answers as the hardware of a
// topology file would, so that everything above NVML runs unchanged on a laptop
// or in a test.
//
//	topology.hcl ──► Machine (nvml.Interface) ──► device/nvidia ──► the plugin
//	                    ▲            │
//	   control.json ────┘            └──► hardware.json, dev/nvidia0 …
//	   (people and tests write)           (the machine writes)
//
// What the hardware is stands in the topology file. What happens to it (a fault,
// a process that takes memory, a GPU that is gone, a call that hangs) stands in
// control.json in the simulator's folder, is read again whenever it changes and
// so outlives the plugin. What software did to the hardware (MIG instances,
// time-slice lengths) stands in hardware.json, and is lost with a reboot as on a
// real machine. Which processes CUDA has suspended stands in cuda.json.
package sim
