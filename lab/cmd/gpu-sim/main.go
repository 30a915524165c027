// SPDX-License-Identifier: MPL-2.0

// Command gpu-sim replays workloads through the placement core: how much of the
// GPUs a policy keeps busy, how much it turns away and how long work waits.
//
// It needs no Nomad. Every subcommand is one file: it declares its flags, its
// help and a run function, and is listed in commands.
package main

import (
	"flag"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

const programName = "gpu-sim"

// commands lists the subcommands in the order of the help text.
var commands = []command.Command{
	{Name: "replay", Synopsis: "replay a workload whose tasks end, and compare policies", Run: runReplay},
	{Name: "simulate", Synopsis: "fill a cluster with tasks that stay, and compare policies", Run: runSimulate},
	{Name: "generate", Synopsis: "write a workload for replay or simulate", Run: runGenerate},
	{Name: "import", Synopsis: "write what Slurm or Kubernetes has run as a workload for replay", Run: runImport},
	command.Version(programName),
}

var program = command.Program{Name: programName, Commands: commands}

func main() { program.Main() }

// newFlags is the flag set of a subcommand.
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	return command.NewFlags(programName, usage, help, stderr)
}
