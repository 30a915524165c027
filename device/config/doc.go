// SPDX-License-Identifier: MPL-2.0

// Package config is the device plugin's configuration: what an operator writes in
// Nomad's agent configuration, read, checked and filled in.
//
//	agent's HCL (Read) ─┐
//	                    ├──► schema ──► raw words ──► Config: rules, Sharing, Health, …
//	Nomad (Decode) ─────┘                   │
//	                                        └──► every mistake at once
//
// Config.RuleFor says how a GPU is to be offered. What a vendor's devices can is the
// table Vendors. Nothing here looks at hardware, but for the description of a GPU
// that a rule may select.
package config
