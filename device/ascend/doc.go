// SPDX-License-Identifier: MPL-2.0

// Package ascend sees Huawei's Ascend devices through the library of their driver
// (device/dcmi), and what the kernel tells of them in files.
//
//	libdcmi.so                      what devices and vNPUs there are, and how each is
//	/sys/bus/pci/devices/<address>  NUMA node; which devices are on the bus
//	/dev/davinci<N>, vdavinci<N>    what a container needs of a device, or of a vNPU
//	/dev/davinci_manager, …         what every container needs, with the driver's files
//
// The library finds the cards once. It is made to look again when the bus has changed, or
// when it has stopped to answer.
package ascend
