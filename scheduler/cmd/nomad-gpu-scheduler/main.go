// SPDX-License-Identifier: MPL-2.0

// Command nomad-gpu-scheduler is the placement service and its command line.
//
// Every subcommand is one file: it declares its flags, its help and a run
// function, and is listed in commands.
package main

import (
	"flag"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

// Exit codes of every subcommand.
const (
	exitOK    = command.ExitOK
	exitError = command.ExitError
	exitUsage = command.ExitUsage
)

const programName = "nomad-gpu-scheduler"

// commands lists the subcommands in the order of the help text.
var commands = []command.Command{
	{Name: "run", Synopsis: "submit a job and say where it goes", Arguments: command.Files, Values: completed(nil), Run: runRun},
	{Name: "plan", Synopsis: "say where a job would go, and why", Arguments: command.Files, Values: completed(nil), Run: runPlan},
	{Name: "status", Synopsis: "show GPUs, queues and what waits", Values: completed(predictors{"node": nodeNamesSeen, "queue": queueNames, "job": jobIDs}), Run: runStatus},
	{Name: "explain", Synopsis: "explain what was decided for a job", Arguments: jobsToExplain, Values: completed(nil), Run: runExplain},
	{Name: "idle", Synopsis: "show who holds GPUs and does not use them", Values: completed(nil), Run: runIdle},
	{Name: "report", Synopsis: "say who held and used which GPUs, and what it cost", Values: completed(predictors{"by": groupings()}), Run: runReport},
	{Name: "export", Synopsis: "write the cluster and its tasks for gpu-sim", Values: completed(nil), Run: runExport},
	{Name: "serve", Synopsis: "run the placement service", Run: runServe},
	{Name: "validate", Synopsis: "check a configuration of the service", Arguments: command.Files, Run: runValidate},
	command.Version(programName),
}

var program = command.Program{Name: programName, Commands: commands}

func main() { program.Main() }

// newFlags is the flag set of a subcommand.
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	return command.NewFlags(programName, usage, help, stderr)
}
