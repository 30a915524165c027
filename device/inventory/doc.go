// SPDX-License-Identifier: MPL-2.0

// Package inventory shows people what a node has, whether or not a plugin runs there. It
// changes nothing.
//
//	configuration ──┐
//	hardware ───────┼──► look ──► Take: the present or possible offer
//	what plugin and ┘         ├─► Validate: rules that select nothing
//	driver wrote down         ├─► Top: who uses how much now
//	                          └─► Diagnose: faults, and remedies
package inventory
