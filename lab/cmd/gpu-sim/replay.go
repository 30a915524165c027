// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

const replayHelp = `Replays a workload whose tasks end and prints, for each policy, how much of the
GPUs was in use over time, how much work was lost, and how long work waited. The
first third of the time until the last arrival is left out: the cluster fills up.

A task that finds no room is lost; with -queue it waits, and what is behind a
task that still does not fit may go ahead of it. Tasks have priorities and
queues where the columns priority, queue and min_run_s say so: with -queue the
product's policies evict for higher priorities and for quotas that are wanted
back, and evicted tasks start again from nothing. The column time_limit_s says how
long a task runs at most, for -outlook and for -order shortest, with which what is
expected to run for the shortest time goes first.

Columns: Used is the part of the GPUs in use over time. Lost is GPU work that had not
started by the last arrival, and Blocked that part of each size of task. Started and
Never count tasks by then, Evicted evictions. Mean, p50 and p99 are the time that a
decision takes. Below, by GPUs, priority and queue: Mean wait, p95, p99 and Longest from
a task's arrival to its first start, or to the last arrival where it never started.

With -bounds the replay keeps nodes for what waits and bounds evictions as the service
does, and tells how long anyone waited behind others, how long queues waited for their
guarantee, and how often work was evicted. With -strict, nothing goes ahead of a task
that does not fit. Both go with the product's policies.

Without -nodes a synthetic workload is used; with it, -arrivals says what
arrives, in any order (arrival_s and duration_s are needed, or creation_time and
deletion_time), or -from what it is drawn from. The generate command writes such
workloads.

Tasks with the same name in the column gang start together or not at all, where nothing
is evicted: without priorities, -quotas and -bounds.

` + liveHelp + `

` + policiesHelp + `
Baselines know no priorities, quotas and bounds: what waits is tried in order of
arrival. A task of fgd's is worth what -history says, or else the arrivals.

With -cluster it replays a cluster that nomad-gpu-scheduler exported, as the service
would have run it: with the queues of its quotas.csv, and with -bounds unless
-bounds=false. With -more, -slices or -mig it replays the first policy without them,
too, as "as-it-is".

A queue may use guarantee_milli (1000 is a GPU) whatever others want, and at most
limit_milli; parent is the queue that it is a part of, or empty. What a queue uses
above its guarantee is lent to it. The table of queues shows how long the tasks of
each waited, and the work they finished.

With -mig a task that takes a part of a GPU goes to the smallest instance that has
as much compute and memory, and no other task to that; where none is free, to a GPU
that is not cut. Priorities do not count then. The list of nodes must say the GPUs'
memory: gpu_memory_mib.`

// replayOptions are the flags of replay.
type replayOptions struct {
	drawOptions
	liveOptions
	boundOptions
	whatIf
	arrivals, history, quotas string
	policy, out, plot         string
	queue, json, cpuTime      bool
	halfLife                  time.Duration
	order                     string
	outlook                   int
}

func runReplay(args []string, stdout, stderr io.Writer) int {
	var o replayOptions
	fs := newFlags("replay", replayHelp, stderr)
	o.drawOptions.register(fs)
	o.liveOptions.register(fs)
	fs.StringVar(&o.nodes, "nodes", "", "CSV `file` of nodes: sn,cpu_milli,memory_mib,gpu,model")
	fs.StringVar(&o.arrivals, "arrivals", "", "CSV `file` of tasks in order of arrival, with arrival_s and duration_s")
	fs.StringVar(&o.history, "history", "", "CSV `file` of tasks that ran before; the demand is learned from it (default: with -from what is drawn from)")
	fs.StringVar(&o.quotas, "quotas", "", "CSV `file` of queue,parent,guarantee_milli,limit_milli; with -queue")
	fs.DurationVar(&o.halfLife, "half-life", 24*time.Hour, "after which `time` what a queue used counts half in the order of what waits; with -quotas")
	o.boundOptions.register(fs)
	o.whatIf.register(fs)
	fs.StringVar(&o.order, "order", "arrival", "what goes first of what waits in a queue with a priority: \"arrival\" or \"shortest\", as in the service's fairness block; with -queue")
	fs.StringVar(&o.policy, "policy", "BALANCED", "`policies` to run, separated by commas")
	fs.StringVar(&o.out, "out", "", "write what started when and where to this CSV `file`")
	fs.StringVar(&o.plot, "plot", "", "write plots over time to this SVG `file`")
	fs.BoolVar(&o.queue, "queue", false, "let tasks wait that find no room")
	fs.IntVar(&o.outlook, "outlook", 0, "estimate for every `n`-th task that begins to wait when it starts, and tell how often that was right; with -queue")
	fs.BoolVar(&o.cpuTime, "cpu-time", false, "measure CPU time, which is the same on a busy machine, instead of the clock's")
	fs.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	if err := o.resolve(fs); err != nil {
		fmt.Fprintf(stderr, "replay: %v\n", err)
		return command.ExitUsage
	}
	if err := o.check(fs); err != nil {
		fmt.Fprintf(stderr, "replay: %v\n", err)
		return command.ExitUsage
	}
	if err := replay(&o, stdout); err != nil {
		fmt.Fprintf(stderr, "replay: %v\n", err)
		return command.ExitError
	}
	return command.ExitOK
}

// check reports options that make no sense together.
func (o *replayOptions) check(fs *flag.FlagSet) error {
	if err := o.drawOptions.check(fs, "arrivals", "cpu-only shared multi"); err != nil {
		return err
	}
	switch {
	case o.from == "" && (o.nodes == "") != (o.arrivals == ""):
		return errors.New("-nodes and -arrivals go together, or -nodes and -from")
	case o.arrivals != "" && command.Given(fs, "demand models count load burst") != "":
		return fmt.Errorf("-%s does not go with -arrivals, which says what arrives", command.Given(fs, "demand models count load burst"))
	case o.quotas != "" && !o.queue:
		return fmt.Errorf("-quotas %q goes with -queue: without it nothing waits for its quota", o.quotas)
	}
	if o.order != config.OrderArrival && (o.order != config.OrderShortest || !o.queue) {
		return fmt.Errorf("-order: %q is not valid (arrival, or shortest with -queue)", o.order)
	}
	if len(o.mig) > 0 && o.bounds {
		return fmt.Errorf("-mig %q does not go with -bounds: what is kept for others knows no instances", o.mig[0])
	}
	for name := range strings.SplitSeq(o.policy, ",") {
		if len(o.mig) > 0 && (o.quotas != "" || o.outlook > 0 || isBaseline(name)) {
			return fmt.Errorf("-mig %q goes with the product's policies, without -quotas and -outlook", o.mig[0])
		}
	}
	if err := o.boundOptions.check(fs, o.queue); err != nil {
		return err
	}
	if err := o.whatIf.check(o.arrivals); err != nil {
		return err
	}
	return o.liveOptions.check(fs, o.from != "", true)
}

// workload reads, draws or makes up the workload to replay.
func (o *replayOptions) workload() (w sim.Workload, err error) {
	if o.arrivals == "" {
		s := sim.DefaultSynthetic()
		s.Live = true
		if o.Percent == sim.DefaultSampling().Percent {
			o.Percent = liveDemand
		}
		w, err = o.liveOptions.workload(&o.drawOptions, s)
	} else if w.Nodes, err = readNodes(o.nodes); err == nil {
		err = command.ReadFile(o.arrivals, func(r io.Reader) (err error) { w.Arrivals, err = sim.ReadArrivals(r); return })
	}
	if err == nil && o.history != "" {
		w.History, err = readTasks(o.history)
	}
	if err == nil && o.cluster == "" && w.Arrivals[len(w.Arrivals)-1].ArriveSecond == 0 {
		err = fmt.Errorf("%q: all tasks arrive at once: gpu-sim simulate fills a cluster with tasks that stay", o.arrivals)
	}
	return w, err
}

// liveDemand is how much a synthetic workload asks for in all, in percent of the
// cluster: long enough for a steady state.
const liveDemand = 2000

// replayed is what one policy achieved.
type replayed struct {
	Policy string
	sim.LiveResult
}

func replay(o *replayOptions, stdout io.Writer) error {
	w, err := o.workload()
	if err != nil {
		return err
	}
	if len(o.mig) > 0 || o.cluster != "" && o.outlook > 0 {
		w.Arrivals = alike(w.Arrivals)
	}
	options := sim.LiveOptions{Queue: o.queue, All: o.cluster != "", HalfLife: o.halfLife, Outlook: o.outlook, Now: o.clock(), Strict: o.strict, Shortest: o.order == config.OrderShortest}
	if o.bounds {
		options.Limits = &o.Limits
	}
	if o.burst && o.queue && o.quotas == "" {
		options.Quotas = sim.EvenQueues(w.Nodes, w.Arrivals)
	}
	if o.quotas != "" {
		err := command.ReadFile(o.quotas, func(r io.Reader) (err error) { options.Quotas, err = sim.ReadQueues(r); return })
		if err != nil {
			return err
		}
	}
	scenes, err := o.scenes(w, options)
	if err != nil {
		return err
	}
	var all []replayed
	for _, s := range scenes {
		p, err := newPlacer(s.policy, &s.Workload, o.Seed())
		if err != nil {
			return err
		}
		r, err := replayOne(&s.Workload, p, s.options)
		if err != nil {
			return fmt.Errorf("policy %s: %w", s.name, err)
		}
		all = append(all, replayed{s.name, r})
		if err := o.write(&s, &r, len(scenes)); err != nil {
			return err
		}
	}
	if o.json {
		return terminal.JSON(stdout, all)
	}
	return printReplayed(all, o.queue, stdout)
}

// alike is tasks with the same priority: instances and estimates are for replays in which
// nothing is evicted.
func alike(tasks []sim.Task) []sim.Task {
	tasks = slices.Clone(tasks)
	for i := range tasks {
		tasks[i].Priority = 0
	}
	return tasks
}

// scene is one replay.
type scene struct {
	sim.Workload
	name, policy string
	options      sim.LiveOptions
}

// scenes are the replays: each policy, and where something is to be other than it is,
// before that the first one with everything as it is.
func (o *replayOptions) scenes(w sim.Workload, options sim.LiveOptions) ([]scene, error) {
	other, err := o.whatIf.apply(w)
	if err != nil {
		return nil, err
	}
	var list []scene
	policies := strings.Split(o.policy, ",")
	if o.asks() {
		list = append(list, scene{w, "as-it-is", policies[0], options})
	}
	for _, name := range policies {
		list = append(list, scene{other, name, name, options})
	}
	o.plain(list)
	return list, nil
}

// plain has baselines, beside a policy of the product, run as published: without bounds, quotas
// and estimates.
func (o *replayOptions) plain(list []scene) {
	ours := slices.ContainsFunc(list, func(s scene) bool { return !isBaseline(s.policy) })
	for i := range list {
		if s := &list[i]; ours && isBaseline(s.policy) {
			s.options.Limits, s.options.Quotas, s.options.Outlook, s.options.Strict, s.options.Shortest = nil, nil, 0, false, false
		}
	}
}

// isBaseline reports whether a policy is not the product's.
func isBaseline(policy string) bool {
	return slices.Contains([]string{"fgd", "bestfit", "random"}, policy)
}

// write writes the files of a replay that are wanted.
func (o *replayOptions) write(s *scene, r *sim.LiveResult, scenes int) error {
	if o.out != "" {
		path := fileFor(o.out, s.name, scenes)
		if err := command.WriteFile(path, func(f io.Writer) error { return sim.WriteStarts(f, s.Nodes, s.Arrivals, r.Starts) }); err != nil {
			return err
		}
	}
	if o.plot == "" {
		return nil
	}
	path := plotFor(o.plot, s.name, scenes)
	return command.WriteFile(path, func(f io.Writer) error { return sim.WriteSVG(f, r.Panels(sim.Capacity(s.Nodes)), nil) })
}

func replayOne(w *sim.Workload, p sim.Placer, o sim.LiveOptions) (sim.LiveResult, error) {
	runtime.LockOSThread() // a thread's CPU time is one goroutine's
	defer runtime.UnlockOSThread()
	return sim.Live(w.Nodes, w.Arrivals, p, o)
}

// plotFor puts the policy into a file name when there are several.
func plotFor(path, policy string, policies int) string {
	if policies == 1 {
		return path
	}
	return strings.TrimSuffix(path, ".svg") + "-" + policy + ".svg"
}

// Seed is that of the draw.
func (o *replayOptions) Seed() uint64 { return o.drawOptions.Seed }

// clock is what decisions are timed with.
func (o *replayOptions) clock() func() time.Time {
	if o.cpuTime {
		return sim.ThreadClock
	}
	return time.Now
}

func printReplayed(all []replayed, queue bool, stdout io.Writer) error {
	const gpuHour = 1000 * 3600
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "Policy\tUsed\tLost\tBlocked: CPU\t1\t2-4\t8 GPUs\tStarted\tNever\tEvicted\tMean\tp50\tp99")
	for i := range all {
		r := &all[i]
		fmt.Fprintf(t, "%s\t%.2f %%\t%.2f %%", r.Policy, r.UsedPercent, r.LostPercent)
		for c := sim.ClassCPU; c <= sim.ClassLarge; c++ {
			fmt.Fprintf(t, "\t%.1f %%", r.Classes[c].BlockedPercent)
		}
		s := r.Speed
		fmt.Fprintf(t, "\t%d\t%d\t%d\t%.1f us\t%.1f us\t%.0f us\n", r.Started, r.Never, r.Evictions, micros(s.Mean), micros(s.P50), micros(s.P99))
	}
	if queue {
		fmt.Fprintln(t, "\nPolicy\tGPUs\tTasks\tMean wait\tp95\tp99\tLongest")
		for i := range all {
			for c := sim.ClassCPU; c <= sim.ClassLarge; c++ {
				waitRow(t, all[i].Policy, c.String(), all[i].Classes[c].Wait)
			}
			if n := all[i].Impossible; n > 0 {
				fmt.Fprintf(t, "%s\timpossible\t%d\t(no node could hold them, even when empty: the service refuses them)\n", all[i].Policy, n)
			}
		}
	}
	for i := range all {
		if c := all[i].Outlook; c != nil {
			fmt.Fprintln(t, "\nPolicy\tEstimates\tUnknown\tSooner\tWithin\tLater\tOff, median\tWidth, median")
			fmt.Fprintf(t, "%s\t%d\t%d\t%.0f %%\t%.0f %%\t%.0f %%\t%s\t%s\n", all[i].Policy, c.Estimates, c.Unknown, c.Sooner, c.Within, c.Later, words(c.LikelyOff), words(c.Width))
		}
	}
	for i := range all {
		r := &all[i]
		if len(r.Priorities) > 1 {
			fmt.Fprintln(t, "\nPolicy\tPriority\tTasks\tMean wait\tp95\tp99\tLongest")
			for _, k := range slices.Sorted(maps.Keys(r.Priorities)) {
				waitRow(t, r.Policy, fmt.Sprint(k), r.Priorities[k])
			}
		}
		if len(r.Queues) > 1 {
			fmt.Fprintln(t, "\nPolicy\tQueue\tTasks\tMean wait\tp95\tp99\tLongest\tGPU hours done")
			for _, k := range slices.Sorted(maps.Keys(r.Queues)) {
				q := r.Queues[k]
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%.1f\n", r.Policy, k, q.Tasks, words(q.Mean), words(q.P95), words(q.P99), words(q.Longest), float64(q.DoneMilliS)/gpuHour)
			}
			fmt.Fprintf(t, "%s\tfairness\t%.3f\t(Jain's index of work done per guarantee; %.1f GPU hours lost to evictions)\n", r.Policy, r.Fairness, float64(r.LostMilliS)/gpuHour)
		}
	}
	for i := range all {
		if all[i].Bounds != nil {
			printBounds(t, &all[i])
		}
	}
	return t.Flush()
}

func waitRow(w io.Writer, policy, name string, v sim.Wait) {
	fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", policy, name, v.Tasks, words(v.Mean), words(v.P95), words(v.P99), words(v.Longest))
}
