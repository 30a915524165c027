// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// add starts one more replica.
func (h *history) add(ctx context.Context) {
	h.t.Helper()
	r := serve(ctx, h.t, h.c, historyConfig)
	listens(ctx, h.t, r)
	h.replicas, h.all = append(h.replicas, r), append(h.all, r)
}

// leader is the replica that decides, and what it shows; nil: there is none.
func (h *history) leader(ctx context.Context) (*replica, *view.Cluster) {
	for _, r := range h.replicas {
		if r == h.frozen {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, 5*time.Second)
		picture := &view.Cluster{}
		_, err := r.API.Raw().Query("/api/v1/gpu/cluster", picture, (&api.QueryOptions{}).WithContext(asked))
		cancel()
		if err == nil && picture.Leading {
			return r, picture
		}
	}
	return nil, nil
}

// notice has the bound count from when a replica decides.
func (h *history) notice(ctx context.Context) {
	if r, _ := h.leader(ctx); r != nil && !h.bound.decides.Load() {
		h.say("  %s decides", r.URL)
		h.bound.decides.Store(true)
	}
	if h.frozen != nil && time.Now().After(h.thaw) {
		h.unfreeze()
	}
}

func (h *history) unfreeze() {
	if h.frozen != nil {
		h.say("  continue %s", h.frozen.URL)
		_ = h.frozen.cmd.Process.Signal(syscall.SIGCONT)
		h.frozen = nil
	}
}

// through is a replica that answers.
func (h *history) through() *api.Client {
	list := slices.DeleteFunc(slices.Clone(h.replicas), func(r *replica) bool { return r == h.frozen })
	return list[h.rng.IntN(len(list))].API
}

func (h *history) killLeader(ctx context.Context) {
	r, _ := h.leader(ctx)
	if r == nil {
		return
	}
	h.bound.decides.Store(false)
	h.unfreeze()
	h.say("kill %s, which leads", r.URL)
	r.kill(syscall.SIGKILL)
	h.replicas = slices.DeleteFunc(h.replicas, func(x *replica) bool { return x == r })
	h.add(ctx)
}

// freezeLeader stops the replica that leads for up to 40 seconds, in which the other takes
// over or not: for the one that is continued it is as if the clock had jumped.
func (h *history) freezeLeader(ctx context.Context) {
	r, _ := h.leader(ctx)
	if r == nil || h.frozen != nil {
		return
	}
	h.bound.decides.Store(false)
	took := time.Duration(3+h.rng.IntN(38)) * time.Second
	h.say("stop %s, which leads, for %s", r.URL, took)
	_ = r.cmd.Process.Signal(syscall.SIGSTOP)
	h.frozen, h.thaw = r, time.Now().Add(took)
}

// killAll leaves Nomad alone for a while.
func (h *history) killAll(ctx context.Context) {
	h.bound.decides.Store(false)
	h.unfreeze()
	h.say("kill both replicas")
	for _, r := range h.replicas {
		r.kill(syscall.SIGKILL)
	}
	h.replicas = nil
	for range 1 + h.rng.IntN(3) {
		about := h.any("job")
		h.say("register %s around the service", about)
		h.told(h.send(ctx, h.rng, h.c.API, "register", about, func() *api.Job { return h.described(h.job(about, true)) }))
		time.Sleep(time.Duration(h.rng.IntN(6)) * time.Second)
	}
	h.add(ctx)
	h.add(ctx)
}
