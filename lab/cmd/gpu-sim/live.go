// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

// liveHelp is the part of the help that generate and replay share.
const liveHelp = `Tasks that end: with -from they arrive at random at the rate at which they offer
-load percent of the work that -count nodes of -nodes can do, for -hours or until
there are -tasks. Several loads come one after the other, each for an equal part of
-hours: -load 130,33,130 fills the cluster, empties it and fills it again. With
-wave 0.2 the load swings by a fifth either way, with a period of four hours.

How long a task runs is drawn from the tasks of -durations (by default the list
itself) of the same GPUs and share, at most -cap seconds; the list needs the columns
creation_time and deletion_time, or duration_s. With -exponential it is drawn from
an exponential distribution of the same mean, per GPUs and share.

With -burst two thirds of the tasks are of the queue greedy, and a third of the queue
bursty, which arrive within the first quarter of every six hours. Their priorities are
30, 50 and 70, and replay guarantees half of the cluster to each queue, unless -quotas
says otherwise.`

// liveOptions are the flags by which a workload is drawn whose tasks end.
type liveOptions struct {
	sim.LiveSampling
	count     int
	loads     []float64
	durations string
	burst     bool
}

// liveNodes is the number of nodes of synthetic workloads unless the command line gives one.
const liveNodes = 50

func (l *liveOptions) register(fs *flag.FlagSet) {
	l.LiveSampling = sim.DefaultLiveSampling()
	fs.IntVar(&l.count, "count", 0, "number of nodes (default: 200, of a synthetic cluster with departures 50, with -from and departures 600, or as many as there are)")
	fs.Func("load", "`percent` of the cluster that tasks which end want at a time, with -from several for equal parts of the time, separated by commas (default: 90 with -from, else 110)", l.setLoads)
	fs.BoolVar(&l.burst, "burst", false, "give what arrives, with its times, to the queues greedy and bursty, with the priorities 30, 50 and 70")
	fs.StringVar(&l.durations, "durations", "", "CSV `file` of tasks to draw durations from, with -from (default: that of -from)")
	fs.Float64Var(&l.Hours, "hours", l.Hours, "`hours` until the last arrival, with -from")
	fs.IntVar(&l.Tasks, "tasks", l.Tasks, "at most so many arrivals, with -from")
	fs.Float64Var(&l.CapSeconds, "cap", l.CapSeconds, "most `seconds` that a task runs, with -from")
	fs.BoolVar(&l.Exponential, "exponential", l.Exponential, "draw durations from exponential distributions of the same means, with -from")
	fs.Float64Var(&l.Wave, "wave", l.Wave, "`part`, 0 to 1, by which the load swings every four hours, with -from")
}

// setLoads reads one load or several.
func (l *liveOptions) setLoads(text string) error {
	l.loads = nil
	for part := range strings.SplitSeq(text, ",") {
		load, err := strconv.ParseFloat(part, 64)
		if err != nil || !(load >= 1 && load <= sim.MaxPercent) {
			return fmt.Errorf("want 1 to %d, or several such numbers", sim.MaxPercent)
		}
		l.loads = append(l.loads, load)
	}
	return nil
}

// check reports options that mean nothing together.
func (l *liveOptions) check(fs *flag.FlagSet, from, live bool) error {
	switch name := command.Given(fs, "durations hours tasks cap exponential wave"); {
	case name != "" && !(from && live):
		return fmt.Errorf("-%s goes with -from, for tasks that end", name)
	case l.burst && !live:
		return errors.New("-burst goes with tasks that end: -live")
	case command.Given(fs, "count") != "" && l.count < 1:
		return fmt.Errorf("-count %d: want 1 or more", l.count)
	case command.Given(fs, "count") != "" && from && !live:
		return fmt.Errorf("-count goes with tasks that end, or without -from")
	case len(l.loads) > 1 && !(from && live):
		return errors.New("-load: several go with -from, for tasks that end")
	case command.Given(fs, "demand") != "" && from && live:
		return fmt.Errorf("-demand does not go with tasks that end: -hours and -tasks say how many arrive")
	case !(l.Wave >= 0 && l.Wave <= 1):
		return fmt.Errorf("-wave %g: want 0 to 1", l.Wave)
	case !(l.Hours > 0) || l.Tasks < 1 || !(l.CapSeconds > 0):
		return fmt.Errorf("-hours, -tasks and -cap: want more than 0")
	}
	return nil
}

// workload draws what the options say; tasks end where the synthetic one is live.
func (l *liveOptions) workload(o *drawOptions, s sim.Synthetic) (sim.Workload, error) {
	w, err := l.arrivals(o, s)
	if l.burst {
		sim.Burst(w.Arrivals, o.Seed)
	}
	return w, err
}

func (l *liveOptions) arrivals(o *drawOptions, s sim.Synthetic) (sim.Workload, error) {
	if s.Live && o.from != "" {
		return l.draw(o)
	}
	if s.Live {
		s.Nodes = liveNodes
	}
	if l.count > 0 {
		s.Nodes = l.count
	}
	if len(l.loads) > 0 {
		s.MeanLoad = int(l.loads[0])
	}
	return o.workload(s)
}

// draw reads the lists and draws the workload.
func (l *liveOptions) draw(o *drawOptions) (sim.Workload, error) {
	nodes, err := readNodes(o.nodes)
	if err != nil {
		return sim.Workload{}, err
	}
	list, err := readTasks(o.from)
	if err != nil {
		return sim.Workload{}, err
	}
	timed := list
	if l.durations != "" {
		if timed, err = readTasks(l.durations); err != nil {
			return sim.Workload{}, err
		}
	}
	s := l.LiveSampling
	s.Seed, s.Mix, s.Nodes = o.Seed, o.Mix, min(s.Nodes, len(nodes))
	if l.count > 0 {
		s.Nodes = l.count
	}
	if len(l.loads) > 0 {
		s.Loads = l.loads
	}
	w, err := sim.SampleLive(nodes, list, timed, s)
	if err != nil {
		return w, fmt.Errorf("%q: %w", o.from, err)
	}
	return w, nil
}
