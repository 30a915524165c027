// SPDX-License-Identifier: MPL-2.0

// Package framework makes PyTorch and TensorFlow use exactly the GPU share
// that a task holds, without any work of the task's author.
//
//	meta { gpu_framework = "pytorch" … } ── ParseMeta ──► Options
//	Options + Share + Group ── Plan ──► Setup ── Merge ──► the task
//
// A Setup is three things: environment variables, a small Python file that
// Python loads at its start (it applies the memory limit once the framework is
// imported, which no variable of either framework can do), and, for
// distributed training, a template and a service through which the ranks find
// each other by Nomad's own service discovery.
//
// What belongs to the node stays with the node: visible devices and MPS limits
// are set by the task driver for the devices that Nomad really gave the task.
//
// The package is pure: no Nomad API, network, clock or file.
package framework
