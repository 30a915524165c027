// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// The queues of [Burst], and how it changes arrivals: the bursty queue's tasks of a period
// arrive within the first quarter of it.
const (
	Greedy      = "greedy"
	Bursty      = "bursty"
	burstPeriod = 6 * 3600 // seconds
	burstPart   = 4
)

// Burst gives arrivals to two queues: two thirds to one that always wants more than its half of
// the cluster, and a third to one that asks for hours for nothing, and then for much at once.
// Priorities are 30, 50 and 70, and work is spared for its first minute.
func Burst(tasks []Task, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, drawBurst))
	for i := range tasks {
		t := &tasks[i]
		t.Queue, t.Priority, t.MinRunSeconds = Greedy, []int{30, 50, 70}[rng.IntN(3)], 60
		if rng.IntN(3) == 0 {
			period := math.Floor(t.ArriveSecond/burstPeriod) * burstPeriod
			t.Queue, t.ArriveSecond = Bursty, period+math.Trunc((t.ArriveSecond-period)/burstPart)
		}
	}
	slices.SortStableFunc(tasks, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) })
}
