// SPDX-License-Identifier: MPL-2.0

// Package mps keeps CUDA MPS control daemons running: one for each device whose
// tasks share through MPS, and before each a gate, through which tasks reach it.
//
// A daemon outlives the plugin that started it, because the tasks on it do. So
// the supervisor adopts the process that listens on the daemon's socket, and starts
// one only where none lives. It confirms limits before it calls a daemon ready,
// looks every second whether it lives and every few seconds whether it answers
// truthfully, and replaces one that does not when no task is there.
//
//	Want(specs) ──► a keeper per device ──► adopt or start ──► gate ──► limits set
//	                                         and read back ──► ready ──► watch
//
// The gate is a process too (RunGate). It hands CUDA programs on to the daemon and
// refuses everything else that the daemon's socket would allow them.
//
// Nothing here waits for a daemon on the caller's time: Want and Status return
// at once.
package mps
