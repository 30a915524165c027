// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Mix is what a variant of a task list consists of, in percent, as the
// publishers of the openb traces define theirs. Nil keeps what the list has.
type Mix struct {
	// CPUOnly of all tasks ask for no GPU; the others stay.
	CPUOnly *float64
	// Shared of the GPU demand comes from tasks with a part of one GPU; there
	// are as many GPU tasks as before.
	Shared *float64
	// Multi of the GPU demand comes from tasks of several GPUs; the others
	// stay. Together with Shared, as many GPU tasks as before stay.
	Multi *float64
	// Models of the GPU tasks name the models that they may use. One that does so
	// for the first time takes the models of a task of its kind that does, or, when no task
	// in the list does, that of a GPU that could run it.
	Models *float64
}

// kind is a class of tasks that mixes tell apart.
type kind int

const (
	kindCPUOnly kind = iota
	kindShared       // a part of one GPU
	kindSingle       // one whole GPU
	kindMulti        // several GPUs
	kinds
)

func (k kind) String() string {
	return [kinds]string{"no GPU", "a part of one GPU", "one whole GPU", "several GPUs"}[k]
}

func kindOf(t *Task) kind {
	switch {
	case t.GPUs == 0:
		return kindCPUOnly
	case t.GPUs > 1:
		return kindMulti
	case t.GPUMilli < gpuMilli:
		return kindShared
	}
	return kindSingle
}

// pool is the tasks of a kind in a list.
type pool struct {
	at     []int // where they stand
	demand int64 // milli of all
}

// tasks is how many tasks of the pool ask for so much.
func (p *pool) tasks(milli float64) float64 {
	if milli == 0 {
		return 0
	}
	return milli / float64(p.demand) * float64(len(p.at))
}

// variant draws a list with the mix from a list, in its order. Every task of a
// kind comes once before any comes twice.
func (m Mix) variant(rng *rand.Rand, nodes []Node, list []Task) ([]Task, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	var of [kinds]pool
	for i := range list {
		p := &of[kindOf(&list[i])]
		p.at = append(p.at, i)
		p.demand += list[i].Demand()
	}
	counts, err := m.counts(&of)
	if err != nil {
		return nil, err
	}
	times := make([]int, len(list))
	for k, n := range counts {
		for n > 0 {
			some := rng.Perm(len(of[k].at))
			for _, i := range some[:min(n, len(some))] {
				times[of[k].at[i]]++
				n--
			}
		}
	}
	var out []Task
	for i, n := range times {
		for range n {
			out = append(out, list[i])
		}
	}
	if m.Models == nil {
		return out, nil
	}
	return out, nameModels(rng, nodes, out, *m.Models/100)
}

// check refuses percentages that no list can have.
func (m Mix) check() error {
	for _, p := range []struct {
		name  string
		value *float64
		below bool // 100 would take infinitely many
	}{
		{"CPU-only tasks", m.CPUOnly, true}, {"shared tasks", m.Shared, false},
		{"multi-GPU tasks", m.Multi, m.Shared == nil}, {"tasks that name models", m.Models, false},
	} {
		switch {
		case p.value == nil:
		case !(*p.value >= 0 && *p.value <= 100): // NaN too
			return fmt.Errorf("%s are %g%%, want 0 to 100", p.name, *p.value)
		case p.below && *p.value == 100:
			return fmt.Errorf("%s are 100%%, want less: the others stay", p.name)
		}
	}
	if m.Shared != nil && m.Multi != nil && *m.Shared+*m.Multi > 100 {
		return fmt.Errorf("shared tasks are %g%% and multi-GPU tasks %g%%, want 100 at most together", *m.Shared, *m.Multi)
	}
	return nil
}

// counts is how many tasks the mix takes from each pool.
func (m Mix) counts(of *[kinds]pool) (counts [kinds]int, err error) {
	var want [kinds]float64
	before, after := 0.0, 0.0 // GPU tasks
	for k, milli := range m.demands(of) {
		if milli > 0 && len(of[k].at) == 0 {
			return counts, noneOf(kind(k))
		}
		want[k] = of[k].tasks(milli)
		if kind(k) != kindCPUOnly {
			before += float64(len(of[k].at))
			after += want[k]
		}
	}
	if m.Shared != nil && after > 0 {
		for k := kindShared; k < kinds; k++ {
			want[k] *= before / after
		}
		after = before
	}
	want[kindCPUOnly] = float64(len(of[kindCPUOnly].at))
	if m.CPUOnly != nil {
		want[kindCPUOnly] = *m.CPUOnly / (100 - *m.CPUOnly) * after
	}
	if want[kindCPUOnly] > 0 && len(of[kindCPUOnly].at) == 0 {
		return counts, noneOf(kindCPUOnly)
	}
	for k := range want {
		if want[k] > maxTasks {
			return counts, fmt.Errorf("it takes %.0f tasks with %v, want %d at most", want[k], kind(k), maxTasks)
		}
		counts[k] = int(math.Round(want[k]))
	}
	return counts, nil
}

func noneOf(k kind) error { return fmt.Errorf("the list has no task with %v to draw from", k) }

// demands is what each kind asks for in the mix: in milli where the other kinds
// stay, else in parts of the whole.
func (m Mix) demands(of *[kinds]pool) [kinds]float64 {
	var want [kinds]float64
	for k := range want {
		want[k] = float64(of[k].demand)
	}
	whole := want[kindSingle] + want[kindMulti]
	switch {
	case m.Shared == nil && m.Multi != nil:
		want[kindMulti] = *m.Multi / (100 - *m.Multi) * (want[kindShared] + want[kindSingle])
	case m.Shared != nil && m.Multi != nil:
		want = [kinds]float64{kindShared: *m.Shared, kindMulti: *m.Multi, kindSingle: 100 - *m.Shared - *m.Multi}
	case m.Shared != nil && whole == 0:
		want = [kinds]float64{kindShared: *m.Shared, kindSingle: 100 - *m.Shared}
	case m.Shared != nil: // single and multi-GPU tasks stay in proportion
		rest := (100 - *m.Shared) / whole
		want = [kinds]float64{kindShared: *m.Shared, kindMulti: want[kindMulti] * rest, kindSingle: want[kindSingle] * rest}
	}
	return want
}
