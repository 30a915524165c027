// Command nomad-gpu-scheduler is the placement service and its command line.
//
// Every subcommand is one file: it declares its flags, its help and a run
// function, and is listed in commands.
package main

import (
	"flag"
	"io"
	"os"

	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
)

// Exit codes of every subcommand.
const (
	exitOK    = cli.ExitOK
	exitError = cli.ExitError
	exitUsage = cli.ExitUsage
)

const programName = "nomad-gpu-scheduler"

// commands lists the subcommands in the order of the help text.
var commands = []cli.Command{
	{Name: "run", Synopsis: "submit a job and say where it goes", Run: runRun},
	{Name: "plan", Synopsis: "say where a job would go, and why", Run: runPlan},
	{Name: "status", Synopsis: "show GPUs, queues and what waits", Run: runStatus},
	{Name: "explain", Synopsis: "explain what was decided for a job", Run: runExplain},
	{Name: "serve", Synopsis: "run the placement service", Run: runServe},
	{Name: "validate", Synopsis: "check a configuration of the service", Run: runValidate},
	{Name: "version", Synopsis: "show which build this is", Run: runVersion},
}

func main() {
	if completed(os.Args[1:]) {
		return
	}
	os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr))
}

// dispatch runs the subcommand that the arguments name.
func dispatch(args []string, stdout, stderr io.Writer) int {
	p := cli.Program{Name: programName, Commands: commands}
	return p.Dispatch(args, stdout, stderr)
}

// newFlags is the flag set of a subcommand.
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	return cli.NewFlags(programName, usage, help, stderr)
}
