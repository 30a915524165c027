// SPDX-License-Identifier: MPL-2.0

package fit_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// Of GPUs with as much free one is enough, the tightest come first, and what does not hold the
// task is in no set.
func TestGPUSetsAreThoseThatDiffer(t *testing.T) {
	s := cluster.NewSnapshot()
	if err := s.AddNode(placetest.Node("n1", "A100", 5)); err != nil {
		t.Fatal(err)
	}
	for gpu, milli := range map[int]int64{1: 500, 2: 800, 4: 500} {
		if err := s.Apply(cluster.Usage{ID: fmt.Sprint(gpu), NodeID: "n1", Takes: []cluster.Take{{GPU: gpu, Milli: milli, Slices: milli * 80 / 1000}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		gpus int
		text string
		want [][]int
	}{
		{0, "", [][]int{nil}},
		{1, "0.5", [][]int{{1}, {0}}},
		{1, "0.2", [][]int{{2}, {1}, {0}}},
		{2, "0.5", [][]int{{1, 4}, {0, 1}, {0, 3}}},
		{2, "0.2", [][]int{{1, 2}, {0, 2}, {1, 4}, {0, 1}, {0, 3}}},
		{1, "1", [][]int{{0}}},
		{3, "1", nil},
	} {
		r := fit.Request{}
		if c.text != "" {
			var err error
			if r, err = placetest.Ask("r", c.text); err != nil {
				t.Fatal(err)
			}
		}
		r.GPUs = c.gpus
		sh := fit.NewShape(&r, s)
		var got [][]int
		for set := range sh.GPUSets(s, s.Nodes["n1"].Pools[0]) {
			got = append(got, slices.Clone(set))
		}
		if !slices.EqualFunc(got, c.want, slices.Equal[[]int]) {
			t.Errorf("%d times %q: sets %v, want %v", c.gpus, c.text, got, c.want)
		}
		for range sh.GPUSets(s, s.Nodes["n1"].Pools[0]) {
			break // the rest is not asked for
		}
	}
}

// A node with named instances or neighbors that step aside is told apart from others that are as free.
func TestShapesThatTellPoolsApart(t *testing.T) {
	s := cluster.NewSnapshot()
	for want, list := range map[bool][]fit.Request{
		false: {{}, {GPUs: 1, ShareMilli: 500}, {Datacenters: []string{"dc1"}}, {Pools: []string{"gpu"}}},
		true:  {{Nodes: []string{"n1"}}, {GPUs: 1, Shared: true, Beside: fit.BesideNone}, {GPUs: 1, Whole: true, Device: "nvidia/gpu"}},
	} {
		for _, r := range list {
			if got := fit.NewShape(&r, s).Apart(); got != want {
				t.Errorf("%+v: apart is %v", r, got)
			}
		}
	}
}
