// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

const simulateHelp = `Replays a workload and prints how much of the GPUs each policy allocates.
Tasks arrive one by one, never leave and are tried once. Without -nodes a
synthetic workload is used; with it, -arrivals says what arrives, or -from what
it is drawn from. The generate command writes such workloads.

` + sampleHelp + `

` + policiesHelp + `

The replay command does the same with tasks that end.`

// policiesHelp is the part of the help that simulate and replay share.
const policiesHelp = `Policies: BALANCED, PACK, SPREAD (the product's), fast (BALANCED with the fast
weights), fgd, bestfit, random (baselines). Several are run side by side when
separated by commas; files then get the policy in their name.`

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	drawOptions
	arrivals, order, history string
	policy, out, plot        string
	tile, moves              int
	json, cpuTime            bool
}

func runSimulate(args []string, stdout, stderr io.Writer) int {
	var o simulateOptions
	fs := newFlags("simulate", simulateHelp, stderr)
	o.register(fs)
	fs.StringVar(&o.nodes, "nodes", "", "CSV `file` of nodes: sn,cpu_milli,memory_mib,gpu,model")
	fs.StringVar(&o.arrivals, "arrivals", "", "CSV `file` of tasks in order of arrival")
	fs.StringVar(&o.order, "order", "", "CSV `file` of node_name,rank: which node wins ties")
	fs.StringVar(&o.history, "history", "", "CSV `file` of tasks that ran before; the demand is learned from it (default: with -from what is drawn from)")
	fs.StringVar(&o.policy, "policy", "BALANCED", "`policies` to run, separated by commas")
	fs.StringVar(&o.out, "out", "", "write the placements to this CSV `file`")
	fs.StringVar(&o.plot, "plot", "", "write plots to this SVG `file`")
	fs.IntVar(&o.tile, "tile", 1, "repeat the cluster and its arrivals so many `times`, to see what a larger one costs")
	fs.IntVar(&o.moves, "moves", 0, "let the product's policies move running work, at most so many `percent` of the tasks placed")
	fs.BoolVar(&o.cpuTime, "cpu-time", false, "measure CPU time, which is the same on a busy machine, instead of the clock's")
	fs.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	if err := o.check(fs); err != nil {
		fmt.Fprintf(stderr, "simulate: %v\n", err)
		return command.ExitUsage
	}
	if err := simulate(&o, stdout); err != nil {
		fmt.Fprintf(stderr, "simulate: %v\n", err)
		return command.ExitError
	}
	return command.ExitOK
}

// check reports options that make no sense together.
func (o *simulateOptions) check(fs *flag.FlagSet) error {
	needed := "cpu-only shared multi"
	if o.arrivals != "" {
		needed += " demand models"
	}
	if err := o.drawOptions.check(fs, "arrivals order", needed); err != nil {
		return err
	}
	switch {
	case o.from == "" && (o.nodes == "") != (o.arrivals == ""):
		return errors.New("-nodes and -arrivals go together, or -nodes and -from")
	case o.order != "" && o.arrivals == "":
		return fmt.Errorf("-order %q goes with -nodes and -arrivals: without them the nodes are synthetic", o.order)
	case o.moves < 0 || o.moves > 100 || (o.moves > 0 && o.out != ""):
		return fmt.Errorf("-moves %d: want 0 to 100, without -out", o.moves)
	case o.tile < 1:
		return fmt.Errorf("-tile %d: want 1 or more", o.tile)
	}
	return nil
}

// report is what one policy achieved.
type report struct {
	Policy          string  `json:"policy"`
	At100           reached `json:"allocated_percent_at_100"`
	At130           reached `json:"allocated_percent_at_130"`
	Final           float64 `json:"allocated_percent_final"`
	Arrivals        int     `json:"arrivals"`
	Placed          int     `json:"placed"`
	Rejected        int     `json:"rejected"`
	RejectedCPUOnly int     `json:"rejected_cpu_only"`
	Moves           int     `json:"moves"`
	PerSecond       float64 `json:"placements_per_second"`
	P50Micros       float64 `json:"p50_us"`
	P99Micros       float64 `json:"p99_us"`
	LongestMicros   float64 `json:"longest_us"`
	MemoryMiB       float64 `json:"heap_mib"`

	result sim.Result
}

// reached is an allocation in percent; NaN, and null in JSON, when not so much
// demand arrived.
type reached float64

func (r reached) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(r)) {
		return []byte("null"), nil
	}
	return json.Marshal(rounded(float64(r)))
}

func (r reached) String() string {
	if math.IsNaN(float64(r)) {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(r))
}

func simulate(o *simulateOptions, stdout io.Writer) error {
	w, err := loadWorkload(o)
	if err != nil {
		return err
	}
	*w = w.Tiled(o.tile)
	policies := strings.Split(o.policy, ",")
	var reports []report
	for _, name := range policies {
		p, err := newPlacer(name, w, o.Seed)
		if err != nil {
			return err
		}
		planned, ours := p.(*sim.Planned)
		if ours {
			planned.MovePercent = o.moves
		}
		reports = append(reports, measure(name, w, p, o.clock()))
		if ours {
			reports[len(reports)-1].Moves = planned.Moves
		}
		if o.out != "" {
			if err := writePlacements(fileFor(o.out, name, len(policies)), w, reports[len(reports)-1].result.Spots); err != nil {
				return err
			}
		}
	}
	if o.plot != "" {
		if err := plot(o.plot, w, reports); err != nil {
			return err
		}
	}
	return printReports(o.json, reports, stdout)
}

// fileFor puts the policy into a file name when there are several.
func fileFor(path, policy string, policies int) string {
	if policies == 1 {
		return path
	}
	stem, ok := strings.CutSuffix(path, ".csv")
	if !ok {
		return path + "-" + policy
	}
	return stem + "-" + policy + ".csv"
}

// clock is what placements are timed with.
func (o *simulateOptions) clock() func() time.Time {
	if o.cpuTime {
		return sim.ThreadClock
	}
	return time.Now
}

func measure(name string, w *sim.Workload, p sim.Placer, clock func() time.Time) report {
	runtime.LockOSThread() // a thread's CPU time is one goroutine's
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := sim.Replay(w.Nodes, w.Arrivals, p, clock)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(p)
	return report{
		Policy: name, At100: reached(r.At(100)), At130: reached(r.At(130)), Final: rounded(r.FinalPercent),
		Arrivals: r.Arrivals, Placed: r.Placed, Rejected: r.Rejected, RejectedCPUOnly: r.RejectedCPUOnly,
		PerSecond: math.Round(r.Speed.PerSecond), P50Micros: micros(r.Speed.P50), P99Micros: micros(r.Speed.P99), LongestMicros: micros(r.Speed.Max),
		MemoryMiB: rounded(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / (1 << 20)), result: r,
	}
}

// rounded is to two decimals.
func rounded(v float64) float64 { return math.Round(v*100) / 100 }

func micros(d time.Duration) float64 { return rounded(float64(d.Nanoseconds()) / 1000) }

func newPlacer(name string, w *sim.Workload, seed uint64) (sim.Placer, error) {
	switch name {
	case "fgd":
		history := w.History
		if len(history) == 0 {
			history = w.Arrivals
		}
		return sim.NewFGD(w.Nodes, history), nil
	case "bestfit":
		return sim.NewBestFit(w.Nodes), nil
	case "random":
		return sim.NewRandom(w.Nodes, seed), nil
	case "fast":
		return sim.NewPlanned(w.Nodes, w.History, place.PolicyBalanced, place.FastWeights())
	}
	policy, err := place.ParsePolicy(name)
	if err != nil {
		return nil, fmt.Errorf("%w; or fast, fgd, bestfit, random", err)
	}
	return sim.NewPlanned(w.Nodes, w.History, policy, place.DefaultWeights())
}

func loadWorkload(o *simulateOptions) (*sim.Workload, error) {
	w, err := o.source()
	if err == nil && o.history != "" {
		w.History, err = readTasks(o.history)
	}
	return &w, err
}

// source is the workload that the options name, draw or leave to be synthetic.
func (o *simulateOptions) source() (w sim.Workload, err error) {
	if o.arrivals == "" {
		return o.workload(sim.DefaultSynthetic())
	}
	if w.Nodes, err = readNodes(o.nodes); err != nil {
		return w, err
	}
	if w.Arrivals, err = readTasks(o.arrivals); err != nil || o.order == "" {
		return w, err
	}
	err = command.ReadFile(o.order, func(r io.Reader) (err error) { w.Nodes, err = sim.ReadOrder(r, w.Nodes); return })
	return w, err
}

func writePlacements(path string, w *sim.Workload, spots []sim.Spot) error {
	return command.WriteFile(path, func(f io.Writer) error { return sim.WritePlacements(f, w.Nodes, w.Arrivals, spots) })
}

func printReports(asJSON bool, reports []report, stdout io.Writer) error {
	if asJSON {
		return terminal.JSON(stdout, reports)
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "Policy\t@100%\t@130%\tEnd\tPlaced\tRejected\tCPU-only\tMoves\tPer second\tp50\tp99\tLongest\tHeap")
	for _, r := range reports {
		fmt.Fprintf(t, "%s\t%v\t%v\t%.2f\t%d\t%d\t%d\t%d\t%.0f\t%.1f us\t%.1f us\t%.0f us\t%.1f MiB\n", r.Policy, r.At100, r.At130, r.Final,
			r.Placed, r.Rejected, r.RejectedCPUOnly, r.Moves, r.PerSecond, r.P50Micros, r.P99Micros, r.LongestMicros, r.MemoryMiB)
	}
	return t.Flush()
}
