// SPDX-License-Identifier: MPL-2.0

package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

// boundOptions are the flags by which waits and evictions are bounded as in the service, and
// measured.
type boundOptions struct {
	sim.Limits
	bounds, strict bool
}

func (b *boundOptions) register(fs *flag.FlagSet) {
	b.Limits = sim.DefaultLimits()
	fs.BoolVar(&b.bounds, "bounds", false, "keep nodes for what waits and bound evictions as the service does, and tell how long anyone waited behind others; with -queue")
	fs.BoolVar(&b.strict, "strict", false, "no backfill: what is behind a task that does not fit waits too; with -queue")
	fs.IntVar(&b.Kept, "kept", b.Kept, "keep so many `nodes` for what waits, with -bounds; 0: none")
	fs.IntVar(&b.MaxPerJob, "max-per-job", b.MaxPerJob, "evict a task so many `times` an hour at most, with -bounds")
	fs.IntVar(&b.MaxPerQueue, "max-per-queue", b.MaxPerQueue, "evict so many `tasks` of a queue an hour at most, with -bounds")
}

// check reports options that mean nothing together.
func (b *boundOptions) check(fs *flag.FlagSet, queue bool) error {
	if name := command.Given(fs, "bounds strict"); name != "" && !queue {
		return fmt.Errorf("-%s goes with -queue: without it nothing waits", name)
	}
	if name := command.Given(fs, "kept max-per-job max-per-queue"); name != "" && !b.bounds {
		return fmt.Errorf("-%s goes with -bounds", name)
	}
	if b.Kept < 0 || b.MaxPerJob < 0 || b.MaxPerQueue < 0 {
		return fmt.Errorf("-kept, -max-per-job and -max-per-queue: want 0 or more")
	}
	return nil
}

// printBounds prints how long anyone waited behind others in a replay.
func printBounds(t io.Writer, r *replayed) {
	b := r.Bounds
	fmt.Fprintln(t, "\nPolicy\tGPUs\tPriority\tWaits\tMean wait\tp95\tp99\tLongest\tOvertaken\tBehind at most\tFirst at most")
	for _, s := range b.Sizes {
		w := s.Wait
		fmt.Fprintf(t, "%s\t%v\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.Policy, s.Size, s.Priority, w.Tasks, words(w.Mean), words(w.P95), words(w.P99), words(w.Longest), s.Overtaken, words(s.LongestBehind), words(s.LongestFirst))
	}
	if len(b.Owed) > 0 {
		fmt.Fprintln(t, "\nPolicy\tOf its guarantee\tGPUs\tTasks\tMean wait\tp95\tp99\tLongest\tLate: p99\tLongest")
		for i := range b.Owed {
			o := &b.Owed[i]
			fmt.Fprintf(t, "%s\t%s\t%v\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Policy, o.Queue, o.Size, o.Wait.Tasks, words(o.Wait.Mean), words(o.Wait.P95), words(o.Wait.P99), words(o.Wait.Longest), words(o.Late.P99), words(o.Late.Longest))
		}
	}
	fmt.Fprintln(t, "\nPolicy\tEvictions\tof one task\twithin an hour\tChain\tHandover\tWork lost\tNever served")
	fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%.2f %%\t%d\n", r.Policy, r.Evictions, b.MostEvictions, b.MostInAnHour, b.LongestChain, b.LongestHandover, b.LostPercent, b.Unserved)
}
