// SPDX-License-Identifier: MPL-2.0

// Package driver is a Nomad task driver that runs containers with containerd
// and gives them the GPU share that Nomad reserved for them.
//
//	StartTask ── decode ──► taskconfig.Config ─┐
//	          ── DeviceEnv, state files ─► spec.Share ──► lease ──► container
//
// The driver trusts three sources, each for one thing: what Nomad's device hook
// put into the task (which slices), the node's state files (where a GPU is
// reached, and whether it may be used), and containerd (what exists). It keeps
// no state of its own that could not be read again from there: containers carry
// labels, and are found by them after any crash.
package driver
