// SPDX-License-Identifier: MPL-2.0

// Command nomad-gpu-self runs in a task's container and speaks for the task: it shows the
// task's share of its GPU, and says what the task needs of it.
package main

import (
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const name = "nomad-gpu-self"

func main() { program.Main() }

var program = command.Program{Name: name, Commands: []command.Command{
	{Name: "status", Synopsis: "show the task's share, what it uses, and its seat", Run: plain(gpu.SelfStatusAction, "status", statusHelp)},
	{Name: "yield", Synopsis: "step aside now: the task's GPU memory goes to the host", Run: plain(gpu.SelfYield, "yield", yieldHelp)},
	{Name: "want", Synopsis: "say that the task needs its GPU", Run: plain(gpu.SelfWant, "want", wantHelp)},
	{Name: "saved", Synopsis: "say that the task's work is on disk as of now", Run: plain(gpu.SelfSaved, "saved", savedHelp)},
	{Name: "resize", Synopsis: "change the task's compute, limit or limit of memory", Run: runResize},
	command.Version(name),
}}

const statusHelp = `Shows what the task has of its GPU, what it uses, what its neighbors use together,
and, where tasks step aside for each other, whether the task is on the GPU.`

const yieldHelp = `Has the task leave its GPU now, with its memory kept on the host, so that others
can have the GPU. It is for GPUs whose tasks step aside for each other.

The task comes back when it says want. It is also brought back by itself now and
then, since a program that waits in CUDA cannot say so.`

const savedHelp = `Says that what the task has computed until now is on disk: were it evicted, only what
comes after would be lost. Run it after each checkpoint. The placement service
hears of it through an event of the task, of which there is one every five
minutes at most.`

const wantHelp = `Says that the task needs its GPU. A task that stepped aside, or was suspended
because it did not use the GPU, comes back when its turn comes; one that is there is
taken to use it.`
