// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

const historyConfig = `
preemption {
  min_run_time     = "0s"
  hold_direct_jobs = true
  max_per_minute   = 600
  max_per_job      = 1000
  max_per_queue    = 1000
}
replica { lock_ttl = "10s" }
listen { request_timeout = "10s" }
queue "a" {
  gpus       = 2
  borrow     = false
  namespaces = ["a"]
}
queue "b" {
  gpus       = 2
  namespaces = ["b"]
}
`

// history drives the service beside a real Nomad through random events.
type history struct {
	*storm
	t        *testing.T
	rng      *rand.Rand
	bound    *boundWatch
	replicas []*replica // two, but while one is killed
	all      []*replica // those that were killed too
	frozen   *replica   // stopped with SIGSTOP until thaw
	thaw     time.Time
	closed   map[*cluster.Node]bool // takes no new work, or has no power
	dark     map[*cluster.Node]bool // has no power
	events   int
	slowest  time.Duration
	broken   int // gangs that were made to run in part
	// overfilled is how often Nomad was seen to start too much in queue a, of a job around the
	// service; children is how often one of the service's own was among that.
	overfilled, children int
}

func (h *history) say(format string, args ...any) {
	h.t.Logf("%s  "+format, append([]any{time.Now().Format("04:05")}, args...)...)
}

// calmDown ends what was done to nodes and replicas.
func (h *history) calmDown(ctx context.Context) {
	h.unfreeze()
	for _, n := range h.c.Nodes {
		if h.dark[n] {
			h.say("%s has power again", n.Name)
			if err := n.PowerOn(ctx); err != nil {
				h.t.Fatal(err)
			}
			h.bound.off.Delete(n.ID)
			delete(h.dark, n)
		}
		if h.closed[n] {
			h.say("%s takes work again", n.Name)
			if _, err := h.c.API.Nodes().UpdateDrain(n.ID, nil, true, nil); err != nil {
				h.t.Fatal(err)
			}
			if _, err := h.c.API.Nodes().ToggleEligibility(n.ID, true, nil); err != nil {
				h.t.Fatal(err)
			}
			delete(h.closed, n)
		}
	}
}

// TestRandomHistoriesOnNomad drives a real Nomad and two replicas of the service through
// random submissions, updates, promotions, deployments that fail, reverts, scales, stops,
// purges, kills of tasks, of clients, of machines and of the leading replica, leaders that
// stand still, times without any, nodes that close and drain, dispatches, forced children,
// lost Variables and jobs that go around the service, as TestRandomHistories in
// scheduler/reconcile does with a model of Nomad. After each quiet time all is as
// history.wrong has it, and nothing is started or stopped any more. No queue with
// borrow = false is above its bound for long.
func TestRandomHistoriesOnNomad(t *testing.T) {
	if os.Getenv("NOMAD_GPU_LONG") == "" {
		t.Skip("takes ten minutes: make test-histories")
	}
	ctx, c := start(t, 3)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	seed := seed(t)
	h := &history{storm: newStorm(c), t: t, rng: rand.New(rand.NewPCG(seed, 5)), bound: &boundWatch{namespace: "a", bound: bound}, closed: map[*cluster.Node]bool{}, dark: map[*cluster.Node]bool{}}
	h.add(ctx)
	h.add(ctx)
	admits(ctx, t, h.replicas[0])
	stop := h.bound.start(ctx, c)
	h.bear(ctx)
	for range 25 { // more than there is room for
		h.request(ctx, h.through(), "register", h.any(""))
	}
	began := time.Now()
	for round := 1; round <= 3 || time.Since(began) < 5*time.Minute; round++ {
		for range 15 + h.rng.IntN(10) {
			h.notice(ctx)
			h.event(ctx)
			time.Sleep(time.Duration(h.rng.IntN(1500)) * time.Millisecond)
		}
		h.calmDown(ctx)
		if h.roomy(ctx, round); t.Failed() {
			break
		}
		h.say("%d events until quiet time %d", h.events, round)
		if h.quiet(ctx); t.Failed() {
			break
		}
	}
	if !t.Failed() {
		h.still(ctx)
		h.nothingIsLost(ctx, t)
	}
	stop()
	h.said(t)
	h.bound.tell(t)
	if h.overfilled == 0 && !t.Failed() {
		t.Error("the queue of namespace a was never above its bound by what Nomad started: nothing had to be brought back")
	}
	h.sum(seed)
}

// sum tells what came to pass.
func (h *history) sum(seed uint64) {
	list, _, err := h.c.API.Allocations().List(&api.QueryOptions{Namespace: "*"})
	h.told(err)
	did := ""
	for _, action := range []string{"evict", "reclaim", "hold", "let_go", "fallback"} {
		n := 0
		for _, r := range h.all {
			n += strings.Count(r.said(h.t), fmt.Sprintf(`"action":%q`, action))
		}
		did += fmt.Sprintf(", %d %s", n, action)
	}
	h.t.Logf("seed %d: %d events, %d replicas, %d gangs broken, %d times too much in queue a (%d with a child), %d allocs%s; the slowest quiet time took %s", seed, h.events, len(h.all), h.broken, h.overfilled, h.children, len(list), did, h.slowest.Round(time.Second))
}
