// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// shape finds out which device blocks an ask takes at all, and where one alloc would go on an
// idle cluster. Memory that no sliced GPU can ever hold may still be found in a MIG instance of its
// own: the smallest profile that is large enough is taken.
func shape(a groupAsk) (groupAsk, blocks.Placed, error) {
	if a.ask.Sharing == admit.SharingMIG && !slices.ContainsFunc(a.ask.Tasks, admit.TaskAsk.Plain) {
		return sized(a)
	}
	form, err := idle(a)
	var refusal *admit.Refusal
	if err == nil || !errors.As(err, &refusal) || refusal.Status != http.StatusUnprocessableEntity {
		return a, form, err
	}
	for _, one := range profiles(a.tx) {
		instance, ok := asInstance(a, one)
		if !ok {
			continue
		}
		if form, failed := idle(instance); failed == nil {
			return instance, form, nil
		}
	}
	return a, form, err
}

// idle places one alloc on the idle cluster: it says whether any node could ever hold it.
func idle(a groupAsk) (blocks.Placed, error) {
	tx, parts := a.tx, blocks.Whenever(a.parts)
	u, err := blocks.Idle(tx).Place(parts)
	if !errors.Is(err, place.ErrNoRoom) {
		return u, err
	}
	var q *config.Queue
	for i := range parts {
		q = tx.Config().Queue(parts[i].Req.Queue)
		e, err := tx.IdlePlanner().Explain(&parts[i].Req, tx.Now())
		if err != nil {
			return blocks.Placed{}, err
		}
		if e.Fits == 0 {
			return blocks.Placed{}, impossible(a.ask, q, e)
		}
	}
	return blocks.Placed{}, impossible(a.ask, q, place.Explanation{Reasons: []place.Reason{{Nodes: len(tx.Cluster.NodeIDs()), Why: "not all of its device blocks together on one node"}}})
}

// sized is the shape of a group that takes whatever MIG instance is large enough: of those
// that have room now the smallest, else the smallest at all. A group with running allocations
// keeps its profile.
func sized(a groupAsk) (whole groupAsk, form blocks.Placed, err error) {
	whole, err = a, &admit.Refusal{Status: http.StatusUnprocessableEntity, Text: fmt.Sprintf("group %q: no MIG instance that a GPU has, or may be cut into, is large enough", a.ask.Group)}
	there, makeable := false, false
	for _, one := range suitable(a) {
		instance, _ := asInstance(a, one)
		switch placed, why := idle(instance); {
		case why == nil && fitsNow(instance):
			return instance, placed, nil
		case why == nil && !there:
			there, whole, form, err = true, instance, placed, nil
		case why != nil && one.makeable && !there && !makeable:
			makeable, whole, err = true, instance, why
		}
	}
	return whole, form, err
}

// profile is a kind of MIG instance that the cluster has, or that demand can make.
type profile struct {
	name      string
	memoryMiB int64
	milli     int64 // of a GPU's compute; 0 is not known
	makeable  bool
}

// profiles lists the MIG profiles of instances that are there, smallest first.
func profiles(tx *state.Tx) []profile {
	var list []profile
	for _, id := range tx.Cluster.PartNodeIDs() {
		for _, g := range tx.Cluster.Node(id).Plan.GPUs {
			p := profile{name: g.Profile, memoryMiB: g.MemoryMiB, milli: gpu.MIGMilli(g.Profile, g.Type)}
			if g.Profile != "" && g.Mode == gpu.ModeWhole && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	sortProfiles(list)
	return list
}

func sortProfiles(list []profile) {
	slices.SortFunc(list, func(x, y profile) int {
		return cmp.Or(cmp.Compare(x.memoryMiB, y.memoryMiB), cmp.Compare(x.milli, y.milli), strings.Compare(x.name, y.name))
	})
}

// mostLarger is how many times the memory of the smallest instance that would do an instance may have:
// a larger one would be lost to others.
const mostLarger = 2

// suitable are the profiles that are large enough for a group, the smallest first: those of
// instances that are there, and those that GPUs may be cut into.
func suitable(a groupAsk) []profile {
	all := profiles(a.tx)
	for _, id := range a.tx.Cluster.MIGNodeIDs() {
		for _, d := range a.tx.Cluster.Node(id).MIG {
			for _, p := range d.Profiles {
				if at := slices.IndexFunc(all, func(q profile) bool { return q.name == p.Name }); at >= 0 {
					all[at].makeable = all[at].makeable || p.Allowed && p.Parts == 0
				} else if p.Allowed && p.Parts == 0 && p.MemoryMiB > 0 {
					all = append(all, profile{p.Name, p.MemoryMiB, p.Milli, true})
				}
			}
		}
	}
	sortProfiles(all)
	keeps := a.parts[0].Req.Profile
	var list []profile
	for _, p := range all {
		if _, ok := asInstance(a, p); !ok || keeps != "" && p.name != keeps {
			continue
		}
		if len(list) == 0 || p.memoryMiB <= mostLarger*list[0].memoryMiB {
			list = append(list, p)
		}
	}
	return list
}

// asInstance turns the parts of an ask for memory into whole instances of a
// profile. It returns false where that is no answer: a fraction means a part of
// a GPU, a count means whole GPUs, and plain blocks say themselves what they
// want.
func asInstance(a groupAsk, of profile) (groupAsk, bool) {
	a.parts = slices.Clone(a.parts)
	for i := range a.parts {
		r := &a.parts[i].Req
		t := a.ask.Tasks[a.parts[i].Task]
		sized := a.ask.Sharing == admit.SharingMIG
		if t.Plain() || t.Request.Kind != gpu.KindMemory && !sized || r.MemoryMiBPerGPU > of.memoryMiB || sized && t.Request.Milli > of.milli {
			return a, false
		}
		r.Profile, r.Whole, r.MinMemoryMiB = of.name, true, r.MemoryMiBPerGPU
		r.MemoryMiBPerGPU, r.ShareMilli, r.Cover = 0, 0, false
	}
	return a, true
}
