// SPDX-License-Identifier: MPL-2.0

package forecast

// Trend tells whether the latest arrivals are like all arrivals, or odd: as
// where jobs come in the order of their size. The next arrivals are unlike the past ones
// then, and estimates from the past are not to be trusted.
type Trend struct {
	all, late [trendSizes]float64 // tasks by size; parts of the last ones by size
	tasks     float64
}

const (
	// trendSizes are CPU-only tasks, parts of a GPU in four steps, one, two or three, four
	// to seven, and more whole GPUs.
	trendSizes = 9
	// trendMemory is how many of the last arrivals count, about.
	trendMemory = 200
	// odd is which part of what arrives lately is of sizes that were rarer before, and oddWhole
	// which part takes one whole GPU.
	odd, oddWhole = 0.2, 0.3
	// wholeOne is the size of what takes one whole GPU.
	wholeOne = 5
)

// Expect notes tasks that are assumed, and Arrive one that has come.
func (t *Trend) Expect(gpus int, milli int64, tasks float64) {
	t.all[trendSize(gpus, milli)] += tasks
	t.tasks += tasks
}

// Arrive notes a task of a number of GPUs, and its share of each.
func (t *Trend) Arrive(gpus int, milli int64) {
	t.Expect(gpus, milli, 1)
	for i := range t.late {
		t.late[i] *= 1 - 1.0/trendMemory
	}
	t.late[trendSize(gpus, milli)] += 1.0 / trendMemory
}

func trendSize(gpus int, milli int64) int {
	switch {
	case gpus == 0:
		return 0
	case gpus == 1:
		return 1 + int(min(milli, 1000)/250)
	case gpus < 4:
		return 6
	case gpus < 8:
		return 7
	}
	return 8
}

// Odd reports whether what arrives lately is unlike what arrived in all, and much of it takes
// one whole GPU: that is what breaks room for several before any are seen.
func (t *Trend) Odd() bool { return t.Unlike() && t.late[wholeOne] > oddWhole*t.known() }

// Unlike reports whether what arrives lately is unlike what arrived in all.
func (t *Trend) Unlike() bool {
	known := t.known()
	if known < 0.5 {
		return false // too few have come
	}
	var apart float64
	for i := range t.late {
		apart += max(0, t.late[i]/known-t.all[i]/t.tasks)
	}
	return apart > odd
}

// known is which part of the last arrivals has come.
func (t *Trend) known() (sum float64) {
	for _, part := range t.late {
		sum += part
	}
	return sum
}
