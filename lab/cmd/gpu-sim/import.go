// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

const importHelp = `Writes what a cluster has run as arrivals for replay, from Slurm's accounting or the
pods of Kubernetes:

  sacct -aXP -S 2026-01-01 -o JobID,Submit,ElapsedRaw,TimelimitRaw,ReqTRES,Account >jobs.txt
  kubectl get pods -A -o json >jobs.txt
  gpu-sim import jobs.txt >arrivals.csv
  gpu-sim replay -nodes nodes.csv -arrivals arrivals.csv -queue -policy BALANCED,fgd

An account or a namespace becomes a queue. A job on several nodes becomes a task for
each, and these or a pod group (coscheduling, Volcano) a gang, which starts together.
Jobs that never ran are left out, and counted; pods that are gone are not known. A pod
that still runs ends at the latest time in the file. Of a pod's GPUs those count that it
asks for as .../gpu; a model in its node selector is to be as in the list of nodes.

What Nomad has run through the placement service: nomad-gpu-scheduler export.`

func runImport(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("import", importHelp, stderr)
	if code, done := command.ParseOptions(fs, args, stdout); done {
		return code
	}
	if fs.NArg() != 1 {
		fmt.Fprintln(stderr, "import: name one file that sacct or kubectl has written; gpu-sim import -h says how")
		return command.ExitUsage
	}
	var tasks []sim.Task
	var told string
	err := command.ReadFile(fs.Arg(0), func(r io.Reader) error {
		from := bufio.NewReader(r)
		if head, err := from.Peek(1); err == nil && head[0] == '{' {
			k, err := sim.ReadKubernetes(from)
			tasks, told = k.Tasks, fmt.Sprintf("%d pods, %d of them still running, %d gangs; %d pods never ran", len(k.Tasks), k.Running, k.Gangs, k.NeverRan)
			return err
		}
		s, err := sim.ReadSlurm(from)
		tasks, told = s.Tasks, fmt.Sprintf("%d jobs, %d of them on several nodes: %d tasks; %d jobs never ran", s.Jobs, s.Wide, len(s.Tasks), s.NeverRan)
		return err
	})
	if err == nil {
		err = sim.WriteTasks(stdout, tasks)
	}
	if err != nil {
		fmt.Fprintf(stderr, "import: %v\n", err)
		return command.ExitError
	}
	fmt.Fprintln(stderr, told)
	return command.ExitOK
}
