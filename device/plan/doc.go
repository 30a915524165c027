// SPDX-License-Identifier: MPL-2.0

// Package plan decides how every device of a node is offered to Nomad.
//
//	hardware.Machine ──┐
//	config.Config ─────┼──► Units ──► Groups ──► Nomad (Fingerprint)
//	registry.Registry ─┤      │  └──► Index ───► Reserve
//	Inputs: holders, ──┘      └─────► State ───► the task driver
//	cordons, faults
//
// It asks no hardware and reads no file: the same inputs give the same units, and a
// device in use stays as it was until it is empty. A unit's last fields are filled in
// by those who prepare it for tasks, before it is published.
package plan
