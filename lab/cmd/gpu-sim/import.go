// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

const importHelp = `Writes what a cluster has run as arrivals for replay, from Slurm's accounting:

  sacct -aXP -S 2026-01-01 -o JobID,Submit,ElapsedRaw,TimelimitRaw,ReqTRES,Account >jobs.txt
  gpu-sim import jobs.txt >arrivals.csv
  gpu-sim replay -nodes nodes.csv -arrivals arrivals.csv -queue -policy BALANCED,fgd

A job on several nodes becomes a task for each, which a replay does not start together.
An account becomes a queue. Jobs that never ran are left out, and counted.

What Nomad has run through the placement service: nomad-gpu-scheduler export.`

func runImport(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("import", importHelp, stderr)
	if code, done := command.ParseOptions(fs, args, stdout); done {
		return code
	}
	if fs.NArg() != 1 {
		fmt.Fprintln(stderr, "import: name one file that sacct has written; gpu-sim import -h says how")
		return command.ExitUsage
	}
	var s sim.Slurm
	err := command.ReadFile(fs.Arg(0), func(r io.Reader) (err error) { s, err = sim.ReadSlurm(r); return })
	if err == nil {
		err = sim.WriteTasks(stdout, s.Tasks)
	}
	if err != nil {
		fmt.Fprintf(stderr, "import: %v\n", err)
		return command.ExitError
	}
	fmt.Fprintf(stderr, "%d jobs, %d of them on several nodes: %d tasks; %d jobs never ran\n", s.Jobs, s.Wide, len(s.Tasks), s.NeverRan)
	return command.ExitOK
}
