package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/scheduler/sim"
)

const generateHelp = `Writes a synthetic workload: nodes.csv, arrivals.csv and history.csv, with the
columns that simulate reads. The same options give the same files.`

func runGenerate(args []string, stdout, stderr io.Writer) int {
	s := sim.DefaultSynthetic()
	fs := newFlags("generate", generateHelp, stderr)
	out := fs.String("out", "", "`directory` to write to; created when missing")
	fs.Uint64Var(&s.Seed, "seed", s.Seed, "seed")
	fs.IntVar(&s.Nodes, "count", s.Nodes, "number of nodes")
	fs.IntVar(&s.Percent, "demand", s.Percent, "GPU demand of all arrivals, in percent of the cluster")
	fs.IntVar(&s.Models, "models", s.Models, "percent of GPU tasks that name a model")
	fs.BoolVar(&s.Live, "live", false, "with times, priorities and queues, for simulate -live")
	fs.IntVar(&s.Teams, "teams", s.Teams, "number of queues, with -live")
	fs.IntVar(&s.MeanLoad, "load", s.MeanLoad, "percent of the cluster wanted at a time, with -live")
	if code, done := parseFlags(fs, args, stdout); done {
		return code
	}
	if *out == "" || s.Nodes < 1 || s.Percent < 1 || s.Models < 0 || s.Models > 100 {
		fmt.Fprintln(stderr, "generate: -out is required; -count and -demand must be positive, -models 0 to 100")
		return exitUsage
	}
	if err := generate(*out, sim.Generate(s)); err != nil {
		fmt.Fprintf(stderr, "generate: %v\n", err)
		return exitError
	}
	return exitOK
}

func generate(dir string, w sim.Workload) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"nodes.csv":    func(f io.Writer) error { return sim.WriteNodes(f, w.Nodes) },
		"arrivals.csv": func(f io.Writer) error { return sim.WriteTasks(f, w.Arrivals) },
		"history.csv":  func(f io.Writer) error { return sim.WriteTasks(f, w.History) },
	} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	return nil
}
