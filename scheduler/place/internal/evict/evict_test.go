// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// scene is a cluster with work on it and, where there are any, quotas.
type scene struct {
	t      *testing.T
	snap   *cluster.Snapshot
	quotas *quota.Quotas
	past   *quota.Past
	ranks  *quota.Ranks
	log    ranking.Log
}

func newScene(t *testing.T, nodes ...cluster.Node) *scene {
	t.Helper()
	c := &scene{t: t, snap: cluster.NewSnapshot()}
	for _, n := range nodes {
		if err := c.snap.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// keep has the scene keep quotas.
func (c *scene) keep(queues ...quota.Queue) {
	c.t.Helper()
	q, err := quota.New(queues)
	if err != nil {
		c.t.Fatal(err)
	}
	c.quotas, c.ranks = q, quota.NewRanks(q, &c.snap.Ledger)
}

// rules are those of the scene's quotas, as the planner hands them in.
func (c *scene) rules() Rules {
	return Rules{
		Quotas: c.quotas,
		Ranks: func() *quota.Ranks {
			for _, id := range c.ranks.Follow() {
				if u := c.snap.Usages[id]; u != nil {
					c.log.Add(c.snap.Nodes[u.NodeID].Pools[0].ID)
				}
			}
			return c.ranks
		},
		Order:  func() *quota.Order { return c.quotas.Order(c.snap, c.past) },
		Ranked: &c.log,
	}
}

// hold books work on a share of one GPU of a node, started an hour ago.
func (c *scene) hold(id, node string, gpu int, milli int64, priority int, change ...func(*cluster.Usage)) {
	c.t.Helper()
	u := cluster.Usage{
		ID: id, NodeID: node, Priority: priority, CPUMHz: 1000, MemoryMiB: 1024, Start: noon.Add(-time.Hour),
		Takes: []cluster.Take{{GPU: gpu, Milli: milli, Slices: (milli*80 + 999) / 1000}},
	}
	for _, edit := range change {
		edit(&u)
	}
	if err := c.snap.Apply(u); err != nil {
		c.t.Fatal(err)
	}
}

func inQueue(name string) func(*cluster.Usage) { return func(u *cluster.Usage) { u.Queue = name } }

func since(minutes int) func(*cluster.Usage) {
	return func(u *cluster.Usage) { u.Start = noon.Add(-time.Duration(minutes) * time.Minute) }
}

// ask is a request in the grammar that users write, of a queue and a priority.
func (c *scene) ask(text, queue string, priority int) *fit.Request {
	c.t.Helper()
	r, err := placetest.Ask("new", text)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Queue, r.Priority = queue, priority
	return &r
}

// eviction is that of work for a request at a moment.
func (c *scene) eviction(r *fit.Request, now time.Time) *Eviction {
	return New(c.snap, c.rules(), r, fit.NewShape(r, c.snap), now, nil)
}

// victims are the IDs of the cheapest victims for a request at noon.
func (c *scene) victims(r *fit.Request) (ids []string) {
	found := c.eviction(r, noon).Best()
	if found == nil {
		return nil
	}
	for _, u := range found.Victims {
		ids = append(ids, u.ID)
	}
	return ids
}
