// SPDX-License-Identifier: MPL-2.0

package keeper

import (
	"iter"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// holding is a share held under a key, and the way to find its use.
type holding struct {
	ledger.Hold
	node, instance string
	alone          bool
}

// holdings are the entries of an alloc. Two device blocks of a task that got parts of the
// same GPU are one.
func holdings(r *state.Reader, a *nomad.Alloc) iter.Seq2[ledger.Key, *holding] {
	return func(yield func(ledger.Key, *holding) bool) {
		all, order := map[ledger.Key]*holding{}, []ledger.Key{}
		for _, h := range r.Capacity.Holdings(a) {
			key := ledger.Key{Alloc: a.ID, Task: ledger.Name(h.Task), GPU: h.GPU.ID}
			one := all[key]
			if one == nil {
				one = &holding{Hold: who(r, a), node: a.NodeID, instance: h.Instances[0], alone: h.Alone()}
				one.Type, one.Profile, one.Mode = h.GPU.Type, h.GPU.Profile, string(h.GPU.Mode)
				all[key] = one
				order = append(order, key)
			}
			one.Milli += h.Charge.Milli
			one.MemoryMiB += h.Charge.MemoryMiB
			one.AskedMilli += h.Milli
			one.AskedMiB += h.MemoryMiB
		}
		for _, key := range order {
			if !yield(key, all[key]) {
				return
			}
		}
	}
}

// who holds, and who pays.
func who(r *state.Reader, a *nomad.Alloc) ledger.Hold {
	h := ledger.Hold{
		Namespace: a.Namespace, Job: ledger.Name(a.Job), Group: ledger.Name(a.Group), Node: a.NodeName,
		HostMHz: a.CPUMHz, HostMiB: a.MemoryMiB, Priority: r.Cluster.PriorityOf(a.Key()),
	}
	if since := r.Cluster.WantedSince(a); since.Before(a.Created) {
		h.Wanted = since.UTC()
	}
	if j := r.Cluster.Job(a.Key()); j != nil {
		h.Parent = ledger.Name(j.Parent)
	}
	if q := r.Cluster.QueueOf(a.Key(), a.Group); q != nil {
		h.Queue, h.Priority = q.Name, min(h.Priority, q.MaxPriority)
	}
	return h
}
