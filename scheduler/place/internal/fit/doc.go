// SPDX-License-Identifier: MPL-2.0

// Package fit is what a task asks for, and where that fits: a [Request] becomes a [Shape], a
// shape a [Need] of each kind of GPU, and [Shape.Fit] says whether a pool has it, or why not.
// It ranks nothing.
package fit
