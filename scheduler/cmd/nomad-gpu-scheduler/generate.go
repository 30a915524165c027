package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/scheduler/sim"
)

const generateHelp = `Writes a workload: nodes.csv, arrivals.csv and history.csv, with the columns
that simulate reads. The same options give the same files. Without -from it is
synthetic.

` + sampleHelp

func runGenerate(args []string, stdout, stderr io.Writer) int {
	s := sim.DefaultSynthetic()
	var o drawOptions
	fs := newFlags("generate", generateHelp, stderr)
	out := fs.String("out", "", "`folder` to write to; created when missing")
	o.register(fs)
	fs.StringVar(&o.nodes, "nodes", "", "CSV `file` of the nodes to draw for, with -from")
	fs.IntVar(&s.Nodes, "count", s.Nodes, "number of nodes")
	fs.BoolVar(&s.Live, "live", false, "with times, priorities and queues, for simulate -live")
	fs.IntVar(&s.Teams, "teams", s.Teams, "number of queues, with -live")
	fs.IntVar(&s.MeanLoad, "load", s.MeanLoad, "percent of the cluster wanted at a time, with -live")
	if code, done := parseFlags(fs, args, stdout); done {
		return code
	}
	err := o.check(fs, "count live teams load", "nodes cpu-only shared multi")
	if err == nil && (*out == "" || s.Nodes < 1) {
		err = errors.New("-out is required; -count must be positive")
	}
	if err != nil {
		fmt.Fprintf(stderr, "generate: %v\n", err)
		return exitUsage
	}
	w, err := o.workload(s)
	if err == nil {
		err = generate(*out, w)
	}
	if err != nil {
		fmt.Fprintf(stderr, "generate: %v\n", err)
		return exitError
	}
	return exitOK
}

// workload is drawn from a list or, without one, synthetic.
func (o *drawOptions) workload(s sim.Synthetic) (sim.Workload, error) {
	if o.from != "" {
		return o.draw()
	}
	s.Seed, s.Percent = o.Seed, o.Percent
	if o.Mix.Models != nil {
		s.Models = *o.Mix.Models
	}
	return sim.Generate(s), nil
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
