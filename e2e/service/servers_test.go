// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestThreeServers submits jobs without a pause through two replicas, each at
// the agent of its node, while Nomad's leader is lost, a node is lost and comes
// back, and the replica that leads sleeps through more events than Nomad keeps:
// nothing is held twice, and nothing that was accepted is stranded.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 3, cluster.Options{Servers: 3})
	var replicas []*replica
	for _, n := range c.Nodes[:2] {
		replicas = append(replicas, serveWith(ctx, t, c, launch{nomad: n.URL, config: "replica {\n lock_ttl = \"10s\"\n}\n"}))
		admitted(ctx, t, replicas[len(replicas)-1], job{id: "warm", meta: map[string]string{"gpu": "1G"}})
	}
	api := c.Nodes[0].API // it finds the servers that are left
	leads := func() *replica {
		for _, r := range replicas {
			var picture view.Cluster
			if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &picture, nil); err == nil && picture.Leading {
				return r
			}
		}
		return nil
	}

	lost := c.Nodes[2]
	if err := lost.PowerOff(); err != nil {
		t.Fatal(err)
	}
	jobs := submitting(ctx, t, replicas)
	leader, err := c.Leader()
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.PowerOff(); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Servers {
		if s != leader {
			if err := s.WaitLeader(ctx, leader.RPC()); err != nil {
				t.Fatal(err)
			}
		}
	}
	jobs.more(5)
	doubleBooked(ctx, t, api)
	if err := leader.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}

	var asleep *replica
	until(ctx, t, "have a replica that leads", time.Minute, func() (bool, string) { asleep = leads(); return asleep != nil, "none says so" })
	if err := asleep.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	jobs.more(20) // Nomad keeps a hundred events; each job makes at least six
	if err := asleep.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	doubleBooked(ctx, t, api)
	if err := lost.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	jobs.more(5)
	accepted := append(jobs.stop(), "warm")
	for _, id := range accepted {
		runs(ctx, t, api, id, 1)
	}
	doubleBooked(ctx, t, api)
	t.Logf("%d jobs run; %d submissions had to be repeated", len(accepted), jobs.repeated)
	for _, r := range replicas {
		until(ctx, t, "see what Nomad has", time.Minute, func() (bool, string) {
			var picture view.Cluster
			if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &picture, nil); err != nil {
				return false, err.Error()
			}
			holders := 0
			for _, n := range picture.Nodes {
				for _, g := range n.GPUs {
					holders += len(g.Holders)
				}
			}
			return holders == len(accepted), fmt.Sprintf("%s sees %d tasks of %d", r.URL, holders, len(accepted))
		})
	}
}

// stream submits job after job, each until it is accepted.
type stream struct {
	t        *testing.T
	ctx      context.Context
	end      context.CancelFunc
	done     chan struct{}
	mu       sync.Mutex
	accepted []string
	repeated int
}

// submitting starts a stream that takes turns with the replicas.
func submitting(ctx context.Context, t *testing.T, replicas []*replica) *stream {
	t.Helper()
	s := &stream{t: t, ctx: ctx, done: make(chan struct{})}
	var working context.Context
	working, s.end = context.WithCancel(ctx)
	t.Cleanup(s.end)
	go func() {
		defer close(s.done)
		for i := 0; working.Err() == nil; i++ {
			id := fmt.Sprintf("s-%d", i)
			// Once a job is on its way it is submitted to the end.
			for turn := i; !s.accepts(replicas[turn%len(replicas)], id); turn++ {
				if ctx.Err() != nil {
					return
				}
				s.note(func() { s.repeated++ })
			}
			s.note(func() { s.accepted = append(s.accepted, id) })
			select {
			case <-working.Done():
			case <-time.After(200 * time.Millisecond): // the machines have room for some eighty
			}
		}
	}()
	return s
}

// accepts submits once. A replica that says nothing may have the job all the
// same.
func (s *stream) accepts(r *replica, id string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	return submit(ctx, r.API, job{id: id, meta: map[string]string{"gpu": "1G,0.01"}}) == nil
}

func (s *stream) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *stream) count() (n int) {
	s.note(func() { n = len(s.accepted) })
	return n
}

// more waits until so many more jobs are accepted.
func (s *stream) more(jobs int) {
	s.t.Helper()
	from := s.count()
	until(s.ctx, s.t, fmt.Sprintf("accept %d more jobs", jobs), 2*time.Minute, func() (bool, string) {
		now := s.count()
		return now >= from+jobs, fmt.Sprintf("%d", now-from)
	})
}

// stop ends the stream and returns the jobs that were accepted.
func (s *stream) stop() []string {
	s.end()
	<-s.done
	return s.accepted
}
