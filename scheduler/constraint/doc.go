// SPDX-License-Identifier: MPL-2.0

// Package constraint evaluates the conditions that a job may set on nodes and on
// devices, as Nomad's scheduler does: every operator, with versions and units.
//
//	Constraint ──┬── OnNode(targets)    ${attr.…}, ${meta.…}, ${node.…}
//	             └── OnDevice(*Device)  ${device.attr.…}, ${device.model}, ${device.ids} …
//
// Placement counts on the answers: a condition that it judged otherwise than
// Nomad would place, charge or hold what Nomad treats in another way. So the
// tests ask Nomad's own checkers the same questions.
//
// The package is pure: no Nomad API, no network, no clock, no files.
package constraint
