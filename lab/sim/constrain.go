// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// nameModels lets a part of the GPU tasks of a list name models: some that do
// no longer do, or some that did not do now.
func nameModels(rng *rand.Rand, nodes []Node, list []Task, part float64) error {
	var bound, free []int
	for i := range list {
		switch {
		case list[i].GPUs == 0:
		case len(list[i].Models) > 0:
			bound = append(bound, i)
		default:
			free = append(free, i)
		}
	}
	want := int(math.Round(float64(len(bound)+len(free)) * part))
	if want <= len(bound) {
		for _, at := range rng.Perm(len(bound))[want:] {
			list[bound[at]].Models = nil
		}
		return nil
	}
	models := modelsOfNodes(nodes)
	if len(bound) > 0 {
		models = modelsOfTasks(list, bound)
	}
	missing := want - len(bound)
	for _, at := range rng.Perm(len(free)) {
		if missing == 0 {
			return nil
		}
		t := &list[free[at]]
		if choice := models(t); len(choice) > 0 {
			t.Models = choice[rng.IntN(len(choice))]
			missing--
		}
	}
	if missing > 0 {
		return fmt.Errorf("only %d of %d GPU tasks can name models: those whose kind does in the list, or, when none does, that a node could run",
			want-missing, len(bound)+len(free))
	}
	return nil
}

// modelsOfTasks tells what the bound tasks of a task's kind name: as many GPUs,
// whole or shared alike.
func modelsOfTasks(list []Task, bound []int) func(*Task) [][]string {
	type likeness struct {
		gpus   int
		shared bool
	}
	like := func(t *Task) likeness { return likeness{t.GPUs, t.GPUMilli < gpuMilli} }
	of := map[likeness][][]string{}
	for _, i := range bound {
		of[like(&list[i])] = append(of[like(&list[i])], list[i].Models)
	}
	return func(t *Task) [][]string { return of[like(t)] }
}

// modelsOfNodes tells the model of every GPU that could run a task.
func modelsOfNodes(nodes []Node) func(*Task) [][]string {
	c := newCluster(nodes)
	known := map[taskKey][][]string{}
	return func(t *Task) [][]string {
		key := keyOf(t)
		if choice, ok := known[key]; ok {
			return choice
		}
		var choice [][]string
		for i := range c.nodes {
			if m := &c.nodes[i]; m.fits(t) && m.model != "" {
				choice = append(choice, slices.Repeat([][]string{{m.model}}, len(m.gpus))...)
			}
		}
		known[key] = choice
		return choice
	}
}
