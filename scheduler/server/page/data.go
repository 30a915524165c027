package page

import (
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
}

type node struct {
	view.Node
	GPUs []device `json:"gpus"`
}

type device struct {
	view.GPU
	Instances int `json:"instances"`
	// Runs are the instances in order: who holds them (an index into holders,
	// -1 for nobody), how many, and whether they are healthy (1 or 0).
	Runs []run `json:"runs"`
}

type run [3]int

func dataOf(c *view.Cluster) data {
	d := data{Cluster: *c, Nodes: make([]node, len(c.Nodes))}
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

func runsOf(g *view.GPU) []run {
	runs := []run{}
	for _, instance := range g.Instances {
		now := run{holderOf(g, instance), 1, 0}
		if instance.Healthy {
			now[2] = 1
		}
		if last := len(runs) - 1; last >= 0 && runs[last][0] == now[0] && runs[last][2] == now[2] {
			runs[last][1]++
			continue
		}
		runs = append(runs, now)
	}
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
