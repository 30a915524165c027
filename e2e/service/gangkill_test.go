// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// TestGangsSurviveKills runs trainings of four GPUs on six, as gang-of-four.txt does, and
// kills the replica that leads at every step: while one waits, while one is let go,
// in the middle of an eviction, and after nodes died under a gang. From start to end
// no two gangs hold three GPUs.
func TestGangsSurviveKills(t *testing.T) {
	if os.Getenv("NOMAD_GPU_LONG") == "" {
		t.Skip("takes five minutes, since every kill costs the wait for the next leader: make test-gangs")
	}
	ctx, c := start(t, 3)
	s := &pair{c: c}
	s.add(ctx, t)
	s.add(ctx, t)
	stop := watchGangs(ctx, t, c, "first", "second", "high")
	defer stop()
	four := map[string]string{"gpu": "1", "gpu_gang": "true"}

	s.submit(ctx, t, job{id: "first", kind: "batch", count: 4, meta: four})
	s.submit(ctx, t, job{id: "second", kind: "batch", count: 4, meta: four})
	whole(ctx, t, c, "first", "while another waits")
	s.killLeader(ctx, t)
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	whole(ctx, t, c, "second", "let go by the next leader")

	s.submit(ctx, t, job{id: "high", kind: "batch", priority: 80, count: 4, meta: four})
	time.Sleep(2500 * time.Millisecond) // a group has waited for two seconds when work is evicted for it
	s.killLeader(ctx, t)
	whole(ctx, t, c, "high", "after a kill in the middle of its evictions")
	none(ctx, t, c, "second", "it made way as a whole")

	dead := powerOff(ctx, t, c, "high")
	whole(ctx, t, c, "high", "on the nodes that are left")
	dead = append(dead, powerOff(ctx, t, c, "high")...)
	s.killLeader(ctx, t)
	none(ctx, t, c, "high", "two GPUs are left for four")
	for _, n := range dead {
		if err := n.PowerOn(ctx); err != nil {
			t.Fatal(err)
		}
	}
	whole(ctx, t, c, "high", "the nodes are back")
	if err := c.Stop(ctx, "high"); err != nil {
		t.Fatal(err)
	}
	whole(ctx, t, c, "second", "it waited all the time")
	doubleBooked(ctx, t, c.API)
}

// pair is two replicas, of which one is killed again and again.
type pair struct {
	c        *cluster.Cluster
	replicas []*replica
}

func (p *pair) add(ctx context.Context, t *testing.T) {
	t.Helper()
	r := serve(ctx, t, p.c, quick)
	p.replicas = append(p.replicas, r)
	admits(ctx, t, r)
}

// killLeader kills the older of the two, which leads, and starts another.
func (p *pair) killLeader(ctx context.Context, t *testing.T) {
	t.Helper()
	p.replicas[0].kill(syscall.SIGKILL)
	p.replicas = p.replicas[1:]
	began := time.Now()
	p.add(ctx, t)
	t.Logf("the next leader decides after %s", time.Since(began).Round(time.Second))
}

func (p *pair) submit(ctx context.Context, t *testing.T, j job) {
	t.Helper()
	admitted(ctx, t, p.replicas[1], j)
}

func whole(ctx context.Context, t *testing.T, c *cluster.Cluster, id, when string) {
	t.Helper()
	holds(ctx, t, c, id, 4, when)
}

func none(ctx context.Context, t *testing.T, c *cluster.Cluster, id, when string) {
	t.Helper()
	holds(ctx, t, c, id, 0, when)
}

// holds waits until a job has so many allocs, all running.
func holds(ctx context.Context, t *testing.T, c *cluster.Cluster, id string, count int, when string) {
	t.Helper()
	took := until(ctx, t, fmt.Sprintf("%s: job %s holds %d", when, id, count), 4*time.Minute, func() (bool, string) {
		live := allocs(ctx, t, c.API, "default", id)
		running := 0
		for _, a := range live {
			if a.ClientStatus == "running" {
				running++
			}
		}
		return running == count && len(live) == count, fmt.Sprintf("%d allocs, %d running", len(live), running)
	})
	t.Logf("%s: job %s holds %d after %s", when, id, count, took.Round(time.Second))
}

// powerOff pulls the plug of a machine that a job is on.
func powerOff(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) []*cluster.Node {
	t.Helper()
	on := allocs(ctx, t, c.API, "default", id)[0].NodeID
	for _, n := range c.Nodes {
		if n.ID == on {
			if err := n.PowerOff(); err != nil {
				t.Fatal(err)
			}
			until(ctx, t, "notice that "+n.Name+" is gone", 2*time.Minute, func() (bool, string) {
				for _, a := range allocs(ctx, t, c.API, "default", id) {
					if a.NodeID == on {
						return false, "its allocs are still there"
					}
				}
				return true, ""
			})
			return []*cluster.Node{n}
		}
	}
	t.Fatalf("job %s is on none of the machines", id)
	return nil
}

// watchGangs looks, until it is stopped, whether two jobs hold three GPUs at once.
func watchGangs(ctx context.Context, t *testing.T, c *cluster.Cluster, jobs ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		looks := 0
		for ctx.Err() == nil {
			list, _, err := c.API.Allocations().List(nil)
			if err != nil {
				continue
			}
			held := map[string]int{}
			for _, a := range list {
				if !cluster.Terminal(a) && a.DesiredStatus == "run" {
					held[a.JobID]++
				}
			}
			half := 0
			for _, id := range jobs {
				if held[id] >= 3 {
					half++
				}
			}
			if half > 1 {
				t.Errorf("two gangs of four hold three GPUs: %v", held)
				return
			}
			looks++
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Logf("no two gangs held three GPUs in %d looks", looks)
	})
	return func() { cancel(); group.Wait() }
}
