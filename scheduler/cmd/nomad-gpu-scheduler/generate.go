package main

import (
	"errors"
	"flag"
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
	if err == nil {
		err = checkGenerate(fs, *out, s)
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

// checkGenerate reports options without which, or with which, nothing sensible
// can be written.
func checkGenerate(fs *flag.FlagSet, out string, s sim.Synthetic) error {
	switch name := given(fs, "teams load"); {
	case out == "":
		return errors.New("-out is required: the folder to write to")
	case s.Nodes < 1:
		return fmt.Errorf("-count %d: want 1 or more", s.Nodes)
	case s.Teams < 0:
		return fmt.Errorf("-teams %d: want 0 or more", s.Teams)
	case s.MeanLoad < 1:
		return fmt.Errorf("-load %d: want 1 or more", s.MeanLoad)
	case name != "" && !s.Live:
		return fmt.Errorf("-%s goes with -live", name)
	}
	return nil
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
