// SPDX-License-Identifier: MPL-2.0

// Package view is one immutable picture of the cluster, for people and
// programs that look: the REST API, the web page, the metrics and the command
// line.
//
//	Cluster ─┬─ Node ── GPU ── Holder     what there is, and who holds it
//	         ├─ Queue                     quota, use and borrowing per team
//	         ├─ Pending                   what waits, and why
//	         ├─ Decision                  late decisions, explained
//	         ├─ Hold                      room kept free for a reservation
//	         └─ Event                     who was evicted, for whom and why
//
// A picture is never changed after it was handed out, so readers need no lock.
// Quantities are integers: memory in MiB, compute in milli (1000 is one GPU).
// The JSON form is what the service's API serves; fields are only added.
package view

// Source hands out the newest picture.
type Source interface {
	// View returns the newest picture. The error says why there is none, for
	// an operator: the service is blind until Nomad has answered once.
	View() (*Cluster, error)
}
