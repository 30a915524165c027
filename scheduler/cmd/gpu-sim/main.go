// Command gpu-sim replays workloads through the placement core: how much of the
// GPUs a policy keeps busy, what it turns away and how long work waits.
//
// It needs no Nomad. Every subcommand is one file: it declares its flags, its
// help and a run function, and is listed in commands.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
)

const programName = "gpu-sim"

// commands lists the subcommands in the order of the help text.
var commands = []cli.Command{
	{Name: "replay", Synopsis: "replay a workload whose tasks end, and compare policies", Run: runReplay},
	{Name: "simulate", Synopsis: "fill a cluster with tasks that stay, and compare policies", Run: runSimulate},
	{Name: "generate", Synopsis: "write a workload for replay or simulate", Run: runGenerate},
	{Name: "version", Synopsis: "show which build this is", Run: runVersion},
}

func main() { os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr)) }

// dispatch runs the subcommand that the arguments name.
func dispatch(args []string, stdout, stderr io.Writer) int {
	p := cli.Program{Name: programName, Commands: commands}
	return p.Dispatch(args, stdout, stderr)
}

// newFlags is the flag set of a subcommand.
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	return cli.NewFlags(programName, usage, help, stderr)
}

const versionHelp = `Shows the version, and what the command was built with.`

func runVersion(args []string, stdout, stderr io.Writer) int {
	if code, done := cli.ParseFlags(newFlags("version", versionHelp, stderr), args, stdout); done {
		return code
	}
	fmt.Fprintln(stdout, version.Line(programName))
	return cli.ExitOK
}
