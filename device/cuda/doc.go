// SPDX-License-Identifier: MPL-2.0

// Package cuda is the little of CUDA's driver interface that shows whether a GPU
// works and what a program gets of it: memory, and a kernel that computes.
//
// libcuda.so.1 is part of the NVIDIA driver and is loaded when it is asked for,
// so that the package builds and starts on machines without one. The kernel is
// PTX text that the driver compiles. A call of a GPU in trouble can hang and
// cannot be interrupted: use the package in a process of its own that can be
// killed, as Probe does.
package cuda
