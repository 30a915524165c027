// SPDX-License-Identifier: MPL-2.0

// Package telemetry measures a node's devices and the tasks on them.
//
//	the last publication ─────┐                ┌──► usage in the state directory ──► the
//	                          ├──► Meter ──────┤    task driver's watchdog
//	leases ───────────────────┘                │
//	readings, processes ─────────► Monitor ◄───┘
//	environments of processes ──┘     ├──► Stats ──► Nomad
//	                                  └──► Serve ──► Prometheus
//
// The names of metrics are those of each vendor's own exporter where it has them. What a
// device does not tell is left out, and never zero.
package telemetry
