// SPDX-License-Identifier: MPL-2.0

// Package nvidia sees NVIDIA GPUs through NVML, real or simulated: it translates
// go-nvml's nvml.Interface into the words of device/hardware.
//
// NVML fails in three ways, and each stays where it happens. A call that fails
// hides its own answer, and the rest of that GPU is reported. A GPU
// that fails is reported with its faults, and the others are
// untouched. A call that hangs is abandoned after a while: its GPU is reported
// as hanging and is not asked again until the call has come back, so that no
// more goroutines are ever stuck than asked that GPU at one time.
package nvidia
