// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"
)

// scaleOf is a way to make a random request smaller; nil where there is none.
func scaleOf(r Request) (sizes int, size func(n int) Request) {
	change := func(f func(r *Request, n int)) func(n int) Request {
		return func(n int) Request { less := r; f(&less, n); return less }
	}
	switch {
	case r.GPUs > 1:
		return r.GPUs, change(func(r *Request, n int) { r.GPUs = n })
	case r.MemoryMiBPerGPU > 0:
		return int(r.MemoryMiBPerGPU / 512), change(func(r *Request, n int) { r.MemoryMiBPerGPU = int64(n) * 512 })
	case r.ShareMilli > 0:
		return int(r.ShareMilli), change(func(r *Request, n int) { r.ShareMilli = int64(n) })
	}
	return 0, nil
}

// starts reports whether so many tasks of a request can be placed one after the other, and
// leaves the snapshot as it was.
func (w *world) starts(r Request, tasks int) bool {
	var placed []string
	for i := range tasks {
		r.ID = fmt.Sprint("trial-", i)
		pl, err := w.plan.Place(&r)
		if err != nil {
			break
		}
		if err := w.snap.Apply(pl.Usage); err != nil {
			w.t.Fatal(err)
		}
		placed = append(placed, r.ID)
	}
	for _, id := range placed {
		if _, err := w.snap.Release(id); err != nil {
			w.t.Fatal(err)
		}
	}
	return len(placed) == tasks
}

// TestTheLargestThatWouldStart: what is said to start now does when it is placed, and one
// size more does not; the nodes are those that one task fits on.
func TestTheLargestThatWouldStart(t *testing.T) {
	said, less := 0, 0
	for seed := range uint64(6) {
		w := newWorld(t, seed, false)
		for range 400 {
			w.place()
			if w.rng.IntN(4) == 0 {
				w.flipGPU()
			}
			r := w.request()
			r.Queue = ""
			sizes, size := scaleOf(r)
			lot := &Lot{Tasks: 1 + w.rng.IntN(3)}
			n, nodes := w.plan.Largest(lot, sizes, size)
			if sizes == 0 {
				continue
			}
			if n > 0 && !w.starts(size(n), lot.Tasks) {
				t.Fatalf("seed %d: %d of size %d would start, it was said, and do not: %+v", seed, lot.Tasks, n, r)
			}
			if n < sizes && w.starts(size(n+1), lot.Tasks) {
				t.Fatalf("seed %d: size %d of %d was said to be the largest for %d of %+v, and one more starts", seed, n, sizes, lot.Tasks, r)
			}
			if n == 0 {
				continue
			}
			one := size(n)
			if e, err := w.plan.Explain(&one, w.now); err != nil || e.Fits != nodes {
				t.Fatalf("seed %d: %d nodes, and the explanation counts %d (%v)", seed, nodes, e.Fits, err)
			}
			if said++; n < sizes {
				less++
			}
		}
	}
	if said < 200 || less < 50 {
		t.Errorf("%d answers, of which %d were less than was asked for: the worlds are too empty or too full to tell anything", said, less)
	}
}

// TestTheLargestKeepsToItsLot: nodes that are left out are, tasks that stand apart do not
// share a node, and what a queue cannot pay for is not offered.
func TestTheLargestKeepsToItsLot(t *testing.T) {
	s := NewSnapshot()
	for _, id := range []string{"a", "b"} {
		n := Node{ID: id, CPUMHz: 1000, MemoryMiB: 1000}
		for i := range 4 {
			n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(id, i), Vendor: "nvidia", Type: "T4", Mode: "slice", MemoryMiB: 16384, SliceMiB: 1024, Slices: 16, MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured})
		}
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	size := func(n int) Request { return Request{ID: "r", GPUs: n, Whole: true} }
	for name, c := range map[string]struct {
		lot      Lot
		n, nodes int
	}{
		"all":        {Lot{Tasks: 1}, 4, 2},
		"two":        {Lot{Tasks: 2}, 4, 2},
		"three":      {Lot{Tasks: 3}, 2, 2},
		"left out":   {Lot{Tasks: 2, Without: map[string]bool{"a": true}}, 2, 1},
		"two apart":  {Lot{Tasks: 2, Apart: true}, 4, 2},
		"third":      {Lot{Tasks: 3, Apart: true}, 0, 0},
		"poor queue": {Lot{Tasks: 2, Pays: func(c Charge) bool { return c.Milli <= 6000 }}, 3, 2},
		"none":       {Lot{}, 0, 0},
	} {
		if n, nodes := p.Largest(&c.lot, 8, size); n != c.n || nodes != c.nodes {
			t.Errorf("%s: %d GPUs on %d nodes, want %d on %d", name, n, nodes, c.n, c.nodes)
		}
	}
}
