// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

const generateHelp = `Writes a workload: nodes.csv, arrivals.csv and history.csv, with the columns
that simulate and, with -live, replay read. The same options give the same
files. Without -from it is synthetic.

` + sampleHelp + `

` + liveHelp

func runGenerate(args []string, stdout, stderr io.Writer) int {
	s := sim.DefaultSynthetic()
	var o drawOptions
	var l liveOptions
	fs := newFlags("generate", generateHelp, stderr)
	out := fs.String("out", "", "`folder` to write to; created when missing")
	o.register(fs)
	fs.StringVar(&o.nodes, "nodes", "", "CSV `file` of the nodes to draw for, with -from")
	fs.BoolVar(&s.Live, "live", false, "with times, for replay; without -from with priorities and queues too")
	fs.IntVar(&s.Teams, "teams", s.Teams, "number of queues, with -live and without -from")
	l.register(fs)
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	err := o.check(fs, "teams", "nodes cpu-only shared multi")
	if err == nil {
		err = checkGenerate(fs, *out, s, &o, &l)
	}
	if err != nil {
		fmt.Fprintf(stderr, "generate: %v\n", err)
		return command.ExitUsage
	}
	w, err := l.workload(&o, s)
	if err == nil {
		err = generate(*out, w)
	}
	if err != nil {
		fmt.Fprintf(stderr, "generate: %v\n", err)
		return command.ExitError
	}
	return command.ExitOK
}

// checkGenerate reports options without which, or with which, nothing sensible
// can be written.
func checkGenerate(fs *flag.FlagSet, out string, s sim.Synthetic, o *drawOptions, l *liveOptions) error {
	switch name := command.Given(fs, "teams load"); {
	case out == "":
		return errors.New("-out is required: the folder to write to")
	case s.Teams < 0:
		return fmt.Errorf("-teams %d: want 0 or more", s.Teams)
	case name != "" && !s.Live:
		return fmt.Errorf("-%s goes with -live", name)
	}
	return l.check(fs, o.from != "", s.Live)
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
		if err := command.WriteFile(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	return nil
}
