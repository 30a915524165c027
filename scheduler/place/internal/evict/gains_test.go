// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// gained is how many nodes without room would do after evictions, by what is remembered.
func (c *scene) gained(k *Gains, r *fit.Request, now time.Time) (nodes int) {
	e := c.eviction(r, now)
	helps := k.Helps(e)
	for _, n := range c.snap.Nodes {
		if e.sh.Could(c.snap, n.Pools[0]) && helps(n.Pools[0].ID) {
			nodes++
		}
	}
	return nodes
}

// Work that starts on one node can put work on another one on what its queue borrows, which
// the owner takes back.
func TestGainsFollowRanks(t *testing.T) {
	nodes := []cluster.Node{placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1)}
	for i := range 30 { // of a small cluster all is looked at each time
		nodes = append(nodes, placetest.Node(fmt.Sprint("cpu", i), "A100", 0))
	}
	c := newScene(t, nodes...)
	c.keep(quota.Queue{Name: "owner", GuaranteeMilli: 1000}, quota.Queue{Name: "other", GuaranteeMilli: 1000})
	c.hold("first", "n1", 0, 1000, 50, inQueue("other"))
	c.hold("apart", "n2", 0, 500, 90)
	var k Gains
	r := c.ask("1", "owner", 50)
	if got := c.gained(&k, r, noon); got != 1 { // the one without a queue gives way to an owner
		t.Fatalf("%d nodes would do at first, want 1", got)
	}
	c.hold("firmer", "n2", 0, 500, 60, inQueue("other"))
	if got := c.gained(&k, r, noon); got != 1 {
		t.Errorf("%d nodes would do, want the one whose work is borrowed by now", got)
	}
	if _, err := c.snap.Release("firmer"); err != nil {
		t.Fatal(err)
	}
	c.hold("larger", "n2", 0, 500, 60, inQueue("other"), func(u *cluster.Usage) { u.Pinned = true })
	if got := c.gained(&k, r, noon); got != 1 {
		t.Errorf("%d nodes would do beside what is pinned, want 1", got)
	}
}

// Gains go by the time of the ask, also where the clock is set back.
func TestGainsGoByTheTimeOfTheAsk(t *testing.T) {
	c := newScene(t, placetest.Node("n1", "A100", 1))
	c.hold("low", "n1", 0, 1000, 10, func(u *cluster.Usage) { u.Start, u.MinRun = noon, time.Hour })
	var k Gains
	r := c.ask("1", "", 50)
	for _, ask := range []struct {
		after time.Duration
		want  int
	}{{time.Minute, 0}, {2 * time.Hour, 1}, {time.Minute, 0}, {time.Hour, 1}} {
		if got := c.gained(&k, r, noon.Add(ask.after)); got != ask.want {
			t.Errorf("after %s %d nodes would do, want %d", ask.after, got, ask.want)
		}
	}
}
