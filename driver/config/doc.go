// SPDX-License-Identifier: MPL-2.0

// Package config is what people write for the task driver: the plugin's block in Nomad's
// agent configuration, and the config block of a task.
//
//	agent's HCL (Read) ─┐
//	                    ├─► Schema ─► Config ─► Parse ─► Settings
//	Nomad (SetConfig) ──┘
//	Nomad (StartTask) ────► TaskSchema ─► Task ─► taskconfig.Config
//
// Every error names all mistakes, each with its key and the valid values. Nothing here
// looks at the node.
package config
