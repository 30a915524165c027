// SPDX-License-Identifier: MPL-2.0

// Package amd sees AMD's GPUs by what the amdgpu driver and KFD tell in files. Nothing
// of ROCm is linked or run: a node needs the kernel's driver, and the tasks' images
// bring the rest.
//
//	/sys/class/kfd/kfd/topology/nodes/N   hardware: properties, memory, links
//	/sys/bus/pci/devices/<address>        state: VRAM, load, RAS, partition modes
//	/sys/class/kfd/kfd/proc/<pid>         who uses it, and how much
//	/dev/kfd, /dev/dri/{card,renderD}N    what a container needs of it
//
// A GPU in a partition mode (CPX, DPX, …) is several KFD nodes, one per partition, which
// share the GPU's unique ID and PCI device, and are told apart by the function number.
package amd
