// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

// whatIf is the replay of an exported cluster, with the changes
// to it.
type whatIf struct {
	cluster string
	more    string
	slices  int
	mig     []string // model=layout
}

func (o *whatIf) register(fs *flag.FlagSet) {
	fs.StringVar(&o.cluster, "cluster", "", "the `directory` that nomad-gpu-scheduler export wrote to: for -nodes, -arrivals, -history and -quotas, with -queue and -bounds")
	fs.StringVar(&o.more, "more", "", "what if there were so many more nodes like one of -nodes: `name=count`, with -arrivals")
	fs.Func("mig", "what if the GPUs of a model were cut into these MIG instances: `model=profile+profile…` (A100=3g.40gb+4g.40gb), more than once for several models; with -arrivals", func(s string) error {
		o.mig = append(o.mig, s)
		return nil
	})
	fs.IntVar(&o.slices, "slices", 0, "what if GPUs were cut into `n` slices, so that parts of them are rounded up to as many; with -arrivals")
}

// asks reports whether anything is to be other than it is.
func (o *whatIf) asks() bool { return o.more != "" || o.slices > 0 || len(o.mig) > 0 }

// resolve fills in the files of a cluster.
func (o *replayOptions) resolve(fs *flag.FlagSet) error {
	if o.cluster == "" {
		return nil
	}
	if name := command.Given(fs, "nodes arrivals from"); name != "" {
		return fmt.Errorf("-%s does not go with -cluster, which says what there is and what arrives", name)
	}
	o.nodes, o.arrivals = filepath.Join(o.cluster, "nodes.csv"), filepath.Join(o.cluster, "tasks.csv")
	if o.history == "" {
		o.history = o.arrivals
	}
	o.queue = true
	if len(o.mig) > 0 || o.outlook > 0 {
		return nil // nothing is evicted then
	}
	if command.Given(fs, "bounds") == "" {
		o.bounds = true
	}
	if quotas := filepath.Join(o.cluster, "quotas.csv"); o.quotas == "" {
		if _, err := os.Stat(quotas); err == nil {
			o.quotas = quotas
		}
	}
	return nil
}

// check reports what makes no sense.
func (o *whatIf) check(arrivals string) error {
	switch {
	case o.more != "" && arrivals == "":
		return fmt.Errorf("-more %q goes with -nodes and -arrivals, or -cluster", o.more)
	case o.slices != 0 && arrivals == "":
		return errors.New("-slices goes with -nodes and -arrivals, or -cluster")
	case len(o.mig) > 0 && arrivals == "":
		return fmt.Errorf("-mig %q goes with -nodes and -arrivals, or -cluster", o.mig[0])
	case o.slices < 0 || o.slices > 1000:
		return fmt.Errorf("-slices %d is not valid (from 1 to 1000 per GPU)", o.slices)
	}
	return nil
}

// apply is a workload as it would be.
func (o *whatIf) apply(w sim.Workload) (sim.Workload, error) {
	var err error
	if w.Nodes, err = o.moreNodes(w.Nodes); err != nil {
		return w, err
	}
	for _, cut := range o.mig {
		model, layout, found := strings.Cut(cut, "=")
		if !found {
			return w, fmt.Errorf("-mig %q is not valid (a model, =, and profiles: A100=3g.40gb+4g.40gb)", cut)
		}
		if w.Nodes, err = sim.Cut(w.Nodes, model, layout); err != nil {
			return w, fmt.Errorf("-mig %q: %w", cut, err)
		}
	}
	w.Arrivals, w.History = o.sliced(w.Arrivals), o.sliced(w.History)
	return w, nil
}

// moreNodes adds nodes like one that is there.
func (o *whatIf) moreNodes(nodes []sim.Node) ([]sim.Node, error) {
	if o.more == "" {
		return nodes, nil
	}
	name, number, _ := strings.Cut(o.more, "=")
	count, err := strconv.Atoi(number)
	if err != nil || count < 1 {
		return nil, fmt.Errorf("-more %q is not valid (a node's name, =, and how many more like it)", o.more)
	}
	at := slices.IndexFunc(nodes, func(n sim.Node) bool { return n.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("-more %q: there is no node %q", o.more, name)
	}
	nodes = slices.Clone(nodes)
	for i := range count {
		n := nodes[at]
		n.Name = fmt.Sprintf("%s+%d", name, i+1)
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// sliced rounds the memory of parts of a GPU up to slices, and compute with it where it
// is in proportion.
func (o *whatIf) sliced(tasks []sim.Task) []sim.Task {
	if o.slices == 0 {
		return tasks
	}
	tasks = slices.Clone(tasks)
	up := func(milli int64) int64 {
		n := int64(o.slices)
		count := min(n, (milli*n+999)/1000)
		return count * 1000 / n
	}
	for i := range tasks {
		switch t := &tasks[i]; {
		case t.GPUs == 0 || t.GPUMilli == 1000:
		case t.GPUMemoryMilli == 0 || t.GPUMemoryMilli == t.GPUMilli:
			t.GPUMilli, t.GPUMemoryMilli = up(t.GPUMilli), 0
		default:
			t.GPUMemoryMilli = up(t.GPUMemoryMilli)
		}
	}
	return tasks
}
