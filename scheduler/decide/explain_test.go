// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// weighing is a node with its terms: of GPUs, host memory and CPU in use, and of what is
// taken from later work.
func weighing(sign, gpu, memory, cpu, lost int64, whole, now int) view.Choice {
	c := view.Choice{NodeName: "other", LostMilli: lost, Whole: whole, WholeNow: now, Terms: []view.Term{
		{Name: "gpu", Weight: sign * 400, Value: gpu}, {Name: "memory", Weight: sign * 300, Value: memory}, {Name: "cpu", Weight: sign * 200, Value: cpu}, {Name: "fragmentation", Weight: -100, Value: lost / 20 * 10_000},
	}}
	for i := range c.Terms {
		c.Score += contribution(&c.Terms[i]) / 1000
	}
	return c
}

func TestWhatSpeaksAgainstANodeIsInGPUsAndPercent(t *testing.T) {
	chosen, empty := weighing(1, 500, 400, 300, 100, 2, 2), weighing(-1, 500, 400, 300, 100, 2, 3)
	for _, c := range []struct {
		other, chosen view.Choice
		want          string
	}{
		{weighing(1, 500, 400, 300, 620, 2, 2), chosen, "it would take 0.52 GPU more from later work (fragmentation_weight)"},
		{weighing(1, 500, 400, 300, 200, 1, 2), chosen, "it would take 0.1 GPU more from later work (fragmentation_weight), and 1 of its 2 whole GPUs"},
		{weighing(1, 250, 400, 300, 100, 2, 2), chosen, "its GPUs would be 25% used, not 50%: the fullest is preferred (gpu_weight)"},
		{weighing(-1, 500, 400, 900, 100, 2, 2), empty, "its CPU would be 90% used, not 30%: the emptiest is preferred (cpu_weight)"},
		{weighing(1, 510, 100, 300, 100, 2, 2), chosen, "its host memory would be 10% used, not 40%: the fullest is preferred (memory_weight)"},
		{weighing(1, 200, 0, 300, 100, 2, 2), chosen, "its GPUs would be 20% used, not 50%: the fullest is preferred (gpu_weight)"}, // and memory as much
		{chosen, chosen, "it would do as well; the first of equals is taken"},
		{weighing(1, 500, 400, 300, 0, 2, 2), chosen, "it would suit better, but its room is kept for other work or does not hold all of the group"},
		{view.Choice{NodeName: "other"}, chosen, ""},
		{view.Choice{NodeName: "other", Terms: chosen.Terms[:1]}, chosen, ""}, // of another release
	} {
		if got := against(&c.other, &c.chosen); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for want, c := range map[string]view.Choice{
		"no GPU there is free as a whole, so none is broken up": {}, "the whole GPU there stays free": {Whole: 1, WholeNow: 1},
		"all 3 whole GPUs there stay free": {Whole: 3, WholeNow: 3}, "0 of 2 whole GPUs there stay free": {WholeNow: 2},
	} {
		if got := leftWhole(&c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
