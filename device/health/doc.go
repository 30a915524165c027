// SPDX-License-Identifier: MPL-2.0

// Package health turns surveys and events of GPUs into faults.
//
//	surveys (hardware.Problem) ──┐
//	XIDs, by their class ────────┼──► Tracker ──► Faults, each since when it stands
//	other events of the driver ──┘      ▲    └──► Suspects: what a probe may clear
//	                                    └─────── Cleared: a probe has succeeded
//
// It asks nothing itself: its callers tell it everything.
package health
