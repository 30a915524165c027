// SPDX-License-Identifier: MPL-2.0

// Package intel sees Intel's GPUs by what the i915 and xe drivers tell in files. No
// library of Intel's is linked or run.
//
//	/sys/bus/pci/devices/<address>   the device, its driver, virtual functions, sensors
//	/sys/class/drm/card<N>           what i915 tells of engines, memory and errors
//	/proc/<pid>/fdinfo               who uses it, and how much
//	/dev/dri/{card,renderD}N         what a container needs of it
//
// Graphics that are built into a processor are left out. Where neither driver tells how
// much memory a card has, it is offered without: such a GPU is not cut into slices.
package intel
