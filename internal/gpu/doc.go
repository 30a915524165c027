// SPDX-License-Identifier: MPL-2.0

// Package gpu holds the words that the parts of nomad-gpu speak with each
// other: what a user asks for, what a device is, what a task holds, and how
// all of that is written down.
//
//	"8G,0.5" ── Request ──► Reservation (device → driver, in the environment)
//	                              │
//	              GPUState ──► driver ──► Lease (driver → device, in a file)
//	      (device → driver, in a file)
//
// A Reservation is identity: it is frozen for the life of an allocation and
// says which slices a task was given. A GPUState is the truth of the moment:
// where a GPU is reached and whether it may be used. A Lease records that a
// task runs on slices.
//
// Quantities are integers. Memory is in MiB, compute in milli (1000 is one
// whole GPU). The package is pure: no files, no network, no clock, standard
// library only.
package gpu
