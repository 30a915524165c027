// SPDX-License-Identifier: MPL-2.0

// Package config reads the operator's file of the placement service.
//
// The file is HCL, and strict: an unknown key, a value out of range
// and a queue that cannot be are errors with a line and a column. A key that is left
// out has the value that [Default] gives it. Queues may also lie in Nomad
// Variables below nomad-gpu/queues/, one each, with the same keys
// ([QueueFromItems]); a file's queue wins over a variable's of the same name.
//
//	Parse(name, text) ──► *Config ──► WithQueues(…) ──► *Config
//
// A Config is never changed after it was made, so that it can be handed to
// many readers and replaced as a whole when the operator reloads it.
package config
