// SPDX-License-Identifier: MPL-2.0

package page

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// data is what the page shows: the picture, with the device instances of each
// GPU written as runs. A GPU of 79 slices held by three tasks is then four
// short lists and not 79 objects.
type data struct {
	view.Cluster
	// These hide the picture's own fields.
	At     *time.Time `json:"at,omitempty"`
	Synced *time.Time `json:"synced,omitempty"`
	Index  uint64     `json:"index,omitempty"`
	Nodes  []node     `json:"nodes"`
	// Idle is the work that has held GPUs unused for as long as queues allow.
	Idle []view.Idle `json:"idle,omitempty"`
}

type node struct {
	view.Node
	GPUs []device `json:"gpus"`
}

type device struct {
	view.GPU
	Instances int `json:"instances"`
	// Runs are the instances: who holds them (an index into holders, -1 for
	// none), how many, and whether they are healthy (1 or 0).
	Runs []run `json:"runs"`
}

type run [3]int

func dataOf(c *view.Cluster) data {
	d := data{Cluster: *c, Nodes: make([]node, len(c.Nodes)), Idle: c.IdleReport(0).Idle}
	for i := range c.Nodes {
		n := node{Node: c.Nodes[i], GPUs: make([]device, len(c.Nodes[i].GPUs))}
		for k := range c.Nodes[i].GPUs {
			g := &c.Nodes[i].GPUs[k]
			n.GPUs[k] = device{GPU: *g, Instances: len(g.Instances), Runs: runsOf(g)}
			if g.Holders == nil {
				n.GPUs[k].Holders = []view.Holder{} // a list for the script, never null
			}
		}
		d.Nodes[i] = n
	}
	return d
}

// runsOf gathers a GPU's instances: those of each holder, then the free ones,
// then those that are out of order. Nomad hands slices out at random and one is
// like another, so where they lie would only be noise.
func runsOf(g *view.GPU) []run {
	counts := map[run]int{}
	for _, instance := range g.Instances {
		key := run{holderOf(g, instance), 0, 0}
		if instance.Healthy {
			key[2] = 1
		}
		counts[key]++
	}
	runs := make([]run, 0, len(counts))
	for key, count := range counts {
		runs = append(runs, run{key[0], count, key[2]})
	}
	slices.SortFunc(runs, func(a, b run) int {
		// Minus one, as an unsigned number, comes after every holder.
		return cmp.Or(cmp.Compare(uint(a[0]), uint(b[0])), cmp.Compare(b[2], a[2]))
	})
	return runs
}

// holderOf finds who holds an instance. A hidden holder is any hidden one.
func holderOf(g *view.GPU, i view.Instance) int {
	if i.AllocID == "" {
		return -1
	}
	for at, h := range g.Holders {
		if h.AllocID == i.AllocID && h.Task == i.Task || i.AllocID == view.Hidden && h.JobID == view.Hidden {
			return at
		}
	}
	return -1
}
