// SPDX-License-Identifier: MPL-2.0

// Package admit reads a job as it is submitted to Nomad, says which GPUs its
// groups ask for, and writes the decision about them into it.
//
//	request body ── Read ──► Job ── Asks ──► (someone decides) ──► Decision
//	                          │                                      │
//	                          └────────────── Apply ◄────────────────┘
//	                                            │
//	                                            ▼
//	                     request body with device blocks and preferences
//
// A job is kept as the JSON text that came in. Only the objects on the way to a
// changed field are written again, in their old order; every other value keeps
// its bytes, so fields that this release does not know survive. A job without
// GPUs is not touched at all.
//
// Apply is deterministic: the same job and decisions give the same bytes. It
// may be applied to its own result: lists that it writes into constraints and
// affinities carry the member "nomad-gpu", by which Read knows them again and
// leaves them out of what the user asked for.
//
// The package is pure: no Nomad API, no network, no clock, no files.
package admit
