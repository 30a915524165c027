// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

// sampleHelp is the part of the help that generate and simulate share.
const sampleHelp = `With -from a workload is drawn from a trace: every task of the list arrives
once, in random order, then random ones again, until they ask for -demand
percent of the GPUs in -nodes; the nodes come in random order, which decides
ties. -cpu-only, -shared, -multi and -models first make a variant of the list,
which is also the history.`

// drawOptions are the flags by which a workload is drawn from a list of tasks.
type drawOptions struct {
	nodes, from string
	sim.Sampling
}

// register adds the flags that mean the same wherever a workload is drawn.
func (o *drawOptions) register(fs *flag.FlagSet) {
	o.Sampling = sim.DefaultSampling()
	fs.StringVar(&o.from, "from", "", "draw the workload from this CSV `file` of tasks, such as openb_pod_list_default.csv; with -nodes")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of all that is random: equal options and seeds give equal results")
	fs.IntVar(&o.Percent, "demand", o.Percent, "GPU demand of all arrivals, in `percent` of the cluster")
	o.percent(fs, &o.Mix.CPUOnly, "cpu-only", "`percent` of the tasks that ask for no GPU; the others stay (default: as in -from)")
	o.percent(fs, &o.Mix.Shared, "shared", "`percent` of the GPU demand from tasks with a part of one GPU; as many GPU tasks stay (default: as in -from)")
	o.percent(fs, &o.Mix.Multi, "multi", "`percent` of the GPU demand from tasks of several GPUs; the others stay, or with -shared their number (default: as in -from)")
	o.percent(fs, &o.Mix.Models, "models", "`percent` of the GPU tasks that name models: those that tasks of as many GPUs name in the list,\n"+
		"or, when none does, that of a random GPU that could run the task (default: as in -from; without it 10)")
}

func (o *drawOptions) percent(fs *flag.FlagSet, into **float64, name, usage string) {
	fs.Func(name, usage, func(s string) error {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v <= 100) {
			return errors.New("want a number from 0 to 100")
		}
		*into = &v
		return nil
	})
}

// check reports options that contradict each other: with -from those that say
// otherwise what arrives, without it those that it needs.
func (o *drawOptions) check(fs *flag.FlagSet, otherwise, needed string) error {
	switch {
	case o.Percent < 1 || o.Percent > sim.MaxPercent:
		return fmt.Errorf("-demand %d: want 1 to %d", o.Percent, sim.MaxPercent)
	case o.from == "":
		if name := command.Given(fs, needed); name != "" {
			return fmt.Errorf("-%s goes with -from", name)
		}
	case o.nodes == "":
		return errors.New("-from needs -nodes: the CSV file of the nodes to draw for")
	default:
		if name := command.Given(fs, otherwise); name != "" {
			return fmt.Errorf("-%s does not go with -from, which draws what arrives", name)
		}
	}
	return nil
}

// draw reads the nodes and the list and draws the workload.
func (o *drawOptions) draw() (sim.Workload, error) {
	nodes, err := readNodes(o.nodes)
	if err != nil {
		return sim.Workload{}, err
	}
	list, err := readTasks(o.from)
	if err != nil {
		return sim.Workload{}, err
	}
	w, err := sim.Sample(nodes, list, o.Sampling)
	if err != nil {
		return sim.Workload{}, fmt.Errorf("%q: %w", o.from, err)
	}
	return w, nil
}

func readNodes(path string) (nodes []sim.Node, err error) {
	err = command.ReadFile(path, func(r io.Reader) (err error) { nodes, err = sim.ReadNodes(r); return })
	return nodes, err
}

func readTasks(path string) (tasks []sim.Task, err error) {
	err = command.ReadFile(path, func(r io.Reader) (err error) { tasks, err = sim.ReadTasks(r); return })
	return tasks, err
}
