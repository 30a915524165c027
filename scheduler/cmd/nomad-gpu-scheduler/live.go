package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/sim"
)

// simulateLive replays departures too and prints what became of the tasks.
func simulateLive(o *simulateOptions, w *sim.Workload, stdout io.Writer) error {
	queues := sim.EvenQueues(w.Nodes, w.Arrivals)
	if o.quotas != "" {
		err := readFile(o.quotas, func(r io.Reader) (err error) { queues, err = sim.ReadQueues(r); return })
		if err != nil {
			return err
		}
	}
	policy, err := place.ParsePolicy(o.policy)
	if err != nil {
		return err
	}
	r, err := sim.Live(w.Nodes, w.History, w.Arrivals, queues, policy, place.DefaultWeights())
	if err != nil {
		return err
	}
	if o.plot != "" {
		err := writeFile(o.plot, func(f io.Writer) error { return sim.WriteSVG(f, r.Panels(sim.Capacity(w.Nodes)), nil) })
		if err != nil {
			return err
		}
	}
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return printLive(&r, stdout)
}

func printLive(r *sim.LiveResult, stdout io.Writer) error {
	const gpuHour = 1000 * 3600
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "started\t%d\nfinished\t%d\nnever started\t%d\n", r.Started, r.Finished, r.Never)
	fmt.Fprintf(t, "evictions\t%d\nwork lost\t%.1f GPU hours\nwork done\t%.1f GPU hours\n", r.Evictions,
		float64(r.LostMilliS)/gpuHour, float64(r.DoneMilliS)/gpuHour)
	fmt.Fprintf(t, "GPU allocated\t%.2f %%, mean over time\nfairness\t%.3f (Jain's index of work done per guarantee)\n\n", r.UsedPercent, r.Fairness)
	fmt.Fprintln(t, "Priority\tTasks\tMean wait\tp95 wait\tLongest")
	for _, k := range slices.Sorted(maps.Keys(r.Waits)) {
		fmt.Fprintf(t, "%d\t%d\t%v\t%v\t%v\n", k, r.Waits[k].Tasks, r.Waits[k].Mean.Round(time.Second), r.Waits[k].P95, r.Waits[k].Longest)
	}
	fmt.Fprintln(t, "\nQueue\tTasks\tMean wait\tp95 wait\tLongest\tGPU hours done")
	for _, k := range slices.Sorted(maps.Keys(r.Queues)) {
		fmt.Fprintf(t, "%s\t%d\t%v\t%v\t%v\t%.1f\n", k, r.Queues[k].Tasks, r.Queues[k].Mean.Round(time.Second), r.Queues[k].P95, r.Queues[k].Longest,
			float64(r.Queues[k].DoneMilliS)/gpuHour)
	}
	return t.Flush()
}
