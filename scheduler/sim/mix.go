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
	// Models of the GPU tasks name the models that they may use. Who does so
	// anew takes the models of a task of its kind that does, or, when nobody
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

// variant draws a list with the mix from a list, in its order. Every task of a
// kind comes once before any comes twice.
func (m Mix) variant(rng *rand.Rand, nodes []Node, list []Task) ([]Task, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	var of [kinds][]int
	var demand [kinds]float64
	for i := range list {
		k := kindOf(&list[i])
		of[k] = append(of[k], i)
		demand[k] += float64(list[i].Demand())
	}
	counts, err := m.counts(&of, demand)
	if err != nil {
		return nil, err
	}
	times := make([]int, len(list))
	for k, n := range counts {
		for n > 0 {
			for _, at := range rng.Perm(len(of[k]))[:min(n, len(of[k]))] {
				times[of[k][at]]++
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

// counts is how many tasks of each kind the mix takes from the kinds of a list.
func (m Mix) counts(of *[kinds][]int, demand [kinds]float64) (counts [kinds]int, err error) {
	var want [kinds]float64
	before, after := 0.0, 0.0 // GPU tasks
	for k, wanted := range m.demands(demand) {
		n := float64(len(of[k]))
		switch {
		case kind(k) == kindCPUOnly:
			want[k] = n
			continue
		case n > 0:
			want[k] = wanted / demand[k] * n
		case wanted > 0:
			return counts, noneOf(kind(k))
		}
		before += n
		after += want[k]
	}
	if m.Shared != nil && after > 0 {
		for k := kindShared; k < kinds; k++ {
			want[k] *= before / after
		}
		after = before
	}
	if m.CPUOnly != nil {
		want[kindCPUOnly] = *m.CPUOnly / (100 - *m.CPUOnly) * after
	}
	for k := range want {
		if want[k] > maxTasks {
			return counts, fmt.Errorf("it takes %.0f tasks with %v, want %d at most", want[k], kind(k), maxTasks)
		}
		counts[k] = int(math.Round(want[k]))
		if counts[k] > 0 && len(of[k]) == 0 {
			return counts, noneOf(kind(k))
		}
	}
	return counts, nil
}

func noneOf(k kind) error { return fmt.Errorf("the list has no task with %v to draw from", k) }

// demands is what each kind asks for in the mix, in any unit, when it asks for
// so much in the list.
func (m Mix) demands(list [kinds]float64) [kinds]float64 {
	want := list
	switch {
	case m.Shared != nil:
		whole := list[kindSingle] + list[kindMulti]
		want = [kinds]float64{kindShared: *m.Shared}
		switch {
		case m.Multi != nil:
			want[kindMulti] = *m.Multi
		case whole > 0:
			want[kindMulti] = (100 - *m.Shared) * list[kindMulti] / whole
		}
		want[kindSingle] = 100 - want[kindShared] - want[kindMulti]
	case m.Multi != nil:
		want[kindMulti] = *m.Multi / (100 - *m.Multi) * (list[kindShared] + list[kindSingle])
	}
	return want
}
