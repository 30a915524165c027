// SPDX-License-Identifier: MPL-2.0

// Package reservetest has a keeper of reservations that lives in memory.
package reservetest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Keeper holds whole GPUs of one picture. It is the picture's source too, so
// that its holds are seen.
type Keeper struct {
	// Now is the clock.
	Now func() time.Time
	// Wants are all that was asked for, dry runs too.
	Wants []reserve.Want

	mu    sync.Mutex
	base  view.Cluster
	holds []view.Hold
	count int
}

// New keeps reservations on a picture, which may have some already.
func New(c *view.Cluster, now func() time.Time) *Keeper {
	return &Keeper{base: *c, holds: c.Holds, Now: now}
}

// View returns the picture with the holds that have not expired.
func (k *Keeper) View() (*view.Cluster, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.base
	c.Holds = k.live()
	return &c, nil
}

func (k *Keeper) live() []view.Hold {
	var live []view.Hold
	for _, h := range k.holds {
		if h.ExpiresAt.After(k.Now()) {
			live = append(live, h)
		}
	}
	return live
}

// Reserve takes the first node with enough free GPUs.
func (k *Keeper) Reserve(_ context.Context, w reserve.Want, dryRun bool) (view.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Wants = append(k.Wants, w)
	k.holds = k.live()
	ever, most, nodes := false, 0, 0
	for i := range k.base.Nodes {
		n := &k.base.Nodes[i]
		free, like, memory := k.free(n, w)
		ever = ever || like >= w.Request.Count
		switch {
		case len(free) > most:
			most, nodes = len(free), 1
		case len(free) == most:
			nodes++
		}
		if len(free) < max(1, w.Request.Count) {
			continue
		}
		free = free[:max(1, w.Request.Count)]
		h := view.Hold{
			Namespace: w.Namespace, Queue: w.Queue, Owner: w.Owner, NodeID: n.ID, NodeName: n.Name, GPUs: free,
			Milli: 1000 * int64(len(free)), MemoryMiB: memory * int64(len(free)), ExpiresAt: k.Now().Add(w.For),
		}
		if dryRun {
			return h, nil
		}
		k.count++
		h.ID = fmt.Sprintf("r-%d", k.count)
		k.holds = append(k.holds, h)
		return h, nil
	}
	if !ever {
		return view.Hold{}, &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("no GPU of the cluster can ever hold %s", w.Request), Details: []string{fmt.Sprintf("%d nodes: GPU memory", len(k.base.Nodes))}}
	}
	refusal := &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("no room for %s now", w.Request), Details: []string{"1 node: no GPU with nothing on it"}}
	if less := w.Request; most > 0 {
		less.Count = most
		return view.Hold{}, reserve.NewInstead(refusal, view.Fits{Ask: less.String(), Allocs: 1, Nodes: nodes})
	}
	return view.Hold{}, refusal
}

// wanted reports whether a request is for GPUs of a type.
func wanted(r gpu.Request, gpuType string) bool {
	same := func(name string) bool { return strings.EqualFold(name, gpuType) }
	return (r.Model == "" || slices.ContainsFunc(r.Models(), same)) && !slices.ContainsFunc(r.Excluded(), same)
}

// free are a node's GPUs that are free for a want, how many would do if they
// were, and the memory of one.
func (k *Keeper) free(n *view.Node, w reserve.Want) (free []string, like int, memory int64) {
	held := map[string]bool{}
	for _, h := range k.holds {
		for _, uuid := range h.GPUs {
			held[uuid] = true
		}
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !wanted(w.Request, g.Type) || g.MemoryMiB < w.MinMemoryMiB || g.ParentUUID != "" || g.Mode == "mig" {
			continue
		}
		like++
		memory = g.MemoryMiB
		if g.Idle() && g.Healthy && !g.Cordoned && !held[g.UUID] {
			free = append(free, g.UUID)
		}
	}
	return free, like, memory
}

// Held finds a hold.
func (k *Keeper) Held(id string) (view.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.live() {
		if h.ID == id {
			return h, nil
		}
	}
	return view.Hold{}, fmt.Errorf("reservation %q: %w", id, reserve.ErrNotFound)
}

// All lists the holds.
func (k *Keeper) All() []view.Hold {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live()
}

// Release forgets a hold.
func (k *Keeper) Release(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, h := range k.holds {
		if h.ID == id {
			k.holds = append(k.holds[:i:i], k.holds[i+1:]...)
			return nil
		}
	}
	return fmt.Errorf("release %q: %w", id, reserve.ErrNotFound)
}
