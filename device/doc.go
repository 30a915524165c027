// SPDX-License-Identifier: MPL-2.0

// Package device is Nomad's device plugin for GPUs: it tells Nomad what GPUs,
// slices, replicas and MIG instances a node has and how well they are, and hands
// them out.
//
//	fleet (the devices of all vendors, real or simulated)
//	   │ hardware.Machine, events, readings
//	   ├───────────────► health ──► faults ──┐
//	   ▼                                     ▼
//	reconciler ◄── config, registry, ──► plan ──► units ──► groups ──► Nomad (Fingerprint)
//	   │           occupancy                        │
//	   │                                            ├──► Index ──► Reserve
//	   └──► prepare: what tasks need, such as CDI   ├──► state files ──► the task driver,
//	        names, MPS daemons (mps), compute modes │    which runs subcommand
//	                                                └──► telemetry ──► Stats, metrics
//
// Decisions are made in packages that know no hardware: config, registry (which outlives
// a reboot), occupancy (who holds what), health and plan. inventory shows people the same
// without a running plugin.
//
// The reconciler works every few seconds and whenever something happens. Each
// pass surveys the hardware, decides on a plan, prepares the devices for it, and
// publishes it. Reserve and Fingerprint read the last publication and never
// wait for hardware; Stats and metrics ask the devices for their readings, with
// a bound on each answer.
package device
