// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// happenings are what may happen, each as often as it says.
var happenings = []struct {
	name  string
	often int
	do    func(h *history, ctx context.Context)
}{
	{"register", 20, func(h *history, ctx context.Context) { h.request(ctx, h.through(), "register", h.any("")) }},
	{"register around", 3, func(h *history, ctx context.Context) {
		about := h.any("job")
		h.say("register %s around the service", about)
		h.told(h.send(ctx, h.rng, h.c.API, "register", about, func() *api.Job { return h.described(h.job(about, true)) }))
	}},
	{"stop", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "stop", h.known("")) }},
	{"purge", 1, (*history).purge},
	{"revert", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "revert", h.known("job")) }},
	{"scale", 3, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "scale", h.known("job")) }},
	{"promote", 3, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "promote", h.known("job")) }},
	{"fail", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "fail", h.known("job")) }},
	{"stop alloc", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "stop alloc", h.known("")) }},
	{"evaluate", 1, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "evaluate", h.known("job")) }},
	{"force", 2, func(h *history, ctx context.Context) { h.request(ctx, h.either(), "force", h.known("periodic")) }},
	{"dispatch", 2, func(h *history, ctx context.Context) {
		about, to := h.known("parameterized"), h.through()
		if about.namespace != "a" && h.rng.IntN(3) == 0 { // nothing brings a queue back that these fill
			to = h.c.API
		}
		h.request(ctx, to, "dispatch", about)
	}},
	{"kill tasks", 2, (*history).killTasks},
	{"kill the leader", 1, (*history).killLeader},
	{"freeze the leader", 1, (*history).freezeLeader},
	{"kill all replicas", 1, (*history).killAll},
	{"close a node", 2, func(h *history, ctx context.Context) {
		n := h.node()
		h.say("%s takes no new work", n.Name)
		_, err := h.c.API.Nodes().ToggleEligibility(n.ID, false, nil)
		h.told(err)
		h.closed[n] = true
	}},
	{"drain a node", 1, func(h *history, ctx context.Context) {
		n := h.node()
		h.say("drain %s", n.Name)
		_, err := h.c.API.Nodes().UpdateDrain(n.ID, &api.DrainSpec{Deadline: 20 * time.Second}, false, nil)
		h.told(err)
		h.closed[n] = true
	}},
	{"kill a client", 1, func(h *history, ctx context.Context) {
		n := h.node()
		if h.dark[n] {
			return
		}
		h.say("kill the client of %s, and start it again", n.Name)
		if err := n.KillClient(); err != nil {
			h.t.Fatal(err)
		}
		if err := n.StartClient(ctx); err != nil {
			h.t.Fatal(err)
		}
	}},
	{"power off", 1, func(h *history, ctx context.Context) {
		n := h.node()
		if h.dark[n] {
			return
		}
		h.say("pull the plug of %s", n.Name)
		if err := n.PowerOff(); err != nil {
			h.t.Fatal(err)
		}
		h.dark[n] = true
		h.bound.off.Store(n.ID, true)
	}},
	{"lose Variables", 2, (*history).loseVariables},
}

// any names a job: of one of the kinds, or of any.
func (h *history) any(kind string) jobKey {
	if kind == "" {
		kind = []string{"job", "job", "job", "job", "job", "job", "periodic", "parameterized"}[h.rng.IntN(8)]
	}
	most := 5
	if kind != "job" {
		most = 2
	}
	return jobKey{[]string{"a", "b", "c"}[h.rng.IntN(3)], fmt.Sprintf("%s-%d", kind, h.rng.IntN(most))}
}

// known names one of the jobs that were registered and not stopped, mostly.
func (h *history) known(kind string) jobKey {
	var list []jobKey
	for key, last := range h.alive {
		if last.alive && strings.HasPrefix(key.id, kind) {
			list = append(list, key)
		}
	}
	if len(list) == 0 || h.rng.IntN(10) == 0 {
		return h.any(kind)
	}
	slices.SortFunc(list, func(x, y jobKey) int { return strings.Compare(x.String(), y.String()) })
	return list[h.rng.IntN(len(list))]
}

func (h *history) node() *cluster.Node { return h.c.Nodes[h.rng.IntN(len(h.c.Nodes))] }

// either is the service or, one time in three, Nomad itself.
func (h *history) either() *api.Client {
	if h.rng.IntN(3) == 0 {
		return h.c.API
	}
	return h.through()
}

func (h *history) request(ctx context.Context, to *api.Client, route string, about jobKey) {
	around := ""
	if to == h.c.API {
		around = " around the service"
	}
	h.say("%s %s%s", route, about, around)
	h.told(h.send(ctx, h.rng, to, route, about, func() *api.Job { return h.described(h.job(about, false)) }))
}

func (h *history) told(err error) {
	if err != nil {
		h.say("  %s", err)
	}
}

// purge has Nomad forget a job once it has stopped. Nomad 1.11 panics where a job is purged
// while a plan for it is under way, so this waits until nothing of it is evaluated.
func (h *history) purge(ctx context.Context) {
	about := h.known("job")
	w, q := (&api.WriteOptions{Namespace: about.namespace}).WithContext(ctx), (&api.QueryOptions{Namespace: about.namespace}).WithContext(ctx)
	_, meta, err := h.c.API.Jobs().Deregister(about.id, false, w)
	if h.note(about, false, meta, err); err != nil {
		return
	}
	for range 40 {
		busy := len(allocs(ctx, h.t, h.c.API, about.namespace, about.id)) > 0
		evals, _, err := h.c.API.Jobs().Evaluations(about.id, q)
		if err != nil {
			return
		}
		for _, e := range evals {
			busy = busy || e.Status == "pending" || e.Status == "blocked"
		}
		if !busy {
			h.say("purge %s", about)
			_, _, err := h.c.API.Jobs().Deregister(about.id, true, w)
			h.told(err)
			h.mu.Lock()
			delete(h.alive, about)
			h.mu.Unlock()
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	h.say("stop %s", about)
}

// killTasks kills what runs in up to three allocs: they fail, and are started again.
func (h *history) killTasks(ctx context.Context) {
	list, _, err := h.c.API.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return
	}
	list = slices.DeleteFunc(list, func(a *api.AllocationListStub) bool { return a.ClientStatus != "running" || a.DesiredStatus != "run" })
	for range 1 + h.rng.IntN(3) {
		if len(list) > 0 {
			a := list[h.rng.IntN(len(list))]
			h.say("kill the task of %.8s of %s/%s", a.ID, a.Namespace, a.JobID)
			short, cancel := context.WithTimeout(ctx, 10*time.Second)
			h.told(h.c.API.Allocations().Signal(&api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace}, (&api.QueryOptions{Namespace: a.Namespace}).WithContext(short), "sleep", "SIGKILL"))
			cancel()
		}
	}
}

func (h *history) loseVariables(ctx context.Context) {
	list, _, err := h.c.API.Variables().PrefixList("nomad-gpu/decisions", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return
	}
	lost := 0
	for _, v := range list {
		if h.rng.IntN(2) == 0 {
			lost++
			_, err := h.c.API.Variables().Delete(v.Path, (&api.WriteOptions{}).WithContext(ctx))
			h.told(err)
		}
	}
	h.say("lose %d of %d records of decisions", lost, len(list))
}

// event has one thing happen.
func (h *history) event(ctx context.Context) {
	sum := 0
	for _, x := range happenings {
		sum += x.often
	}
	at := h.rng.IntN(sum)
	for _, x := range happenings {
		if at -= x.often; at < 0 {
			h.events++
			x.do(h, ctx)
			return
		}
	}
}
