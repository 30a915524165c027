// SPDX-License-Identifier: MPL-2.0

// Package blocks is the way of device blocks to the placement core and back: what a group asks
// for becomes a [place.Request] per device block, and what the core placed becomes the device
// blocks that give an alloc just that, with the constraints that keep it there. It decides
// nothing, and changes nothing.
//
//	admit.Ask ──► PartsOf ──► Scratch.Place ──► Placed ──► Tasks, KeepClose ──► admit.TaskDecision
//
// [Need] is the same for what Nomad starts by itself: what a group needs with the blocks that it has.
package blocks
