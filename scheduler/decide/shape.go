// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
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
	return blocks.Placed{}, impossible(a.ask, q, place.Explanation{Reasons: []place.Reason{{Nodes: len(tx.NodeIDs()), Why: "not all of its device blocks together on one node"}}})
}

// profile is a kind of MIG instance that the cluster has.
type profile struct {
	name      string
	memoryMiB int64
}

// profiles lists the MIG profiles, smallest first.
func profiles(tx *state.Tx) []profile {
	var list []profile
	for _, id := range tx.NodeIDs() {
		for _, g := range tx.Node(id).Plan.GPUs {
			p := profile{g.Profile, g.MemoryMiB}
			if g.Profile != "" && g.Mode == gpu.ModeWhole && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(x, y profile) int {
		return cmp.Or(cmp.Compare(x.memoryMiB, y.memoryMiB), strings.Compare(x.name, y.name))
	})
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
		if t.Plain() || t.Request.Kind != gpu.KindMemory || r.MemoryMiBPerGPU > of.memoryMiB {
			return a, false
		}
		r.Profile, r.Whole, r.MinMemoryMiB = of.name, true, r.MemoryMiBPerGPU
		r.MemoryMiBPerGPU, r.ShareMilli = 0, 0
	}
	return a, true
}
