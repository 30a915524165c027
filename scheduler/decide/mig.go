package decide

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// shape finds out which device blocks the ask takes at all. Memory that no
// sliced GPU can ever hold may still be found in a MIG instance of its own: the
// smallest profile that is large enough is taken.
func (p *groupPlacer) shape() (err error) {
	if p.form, err = form(p.tx, p.ask, p.parts); err == nil {
		return nil
	}
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != http.StatusUnprocessableEntity {
		return err
	}
	for _, one := range profiles(p.tx) {
		parts, ok := p.asInstance(one)
		if !ok {
			continue
		}
		if form, failed := form(p.tx, p.ask, parts); failed == nil {
			p.parts, p.form = parts, form
			return nil
		}
	}
	return err
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
func (p *groupPlacer) asInstance(of profile) ([]blocks.Part, bool) {
	parts := slices.Clone(p.parts)
	for i := range parts {
		r := &parts[i].Req
		t := p.ask.Tasks[parts[i].Task]
		if t.Plain() || t.Request.Kind != gpu.KindMemory || r.MemoryMiBPerGPU > of.memoryMiB {
			return nil, false
		}
		r.Profile, r.Whole, r.MinMemoryMiB = of.name, true, r.MemoryMiBPerGPU
		r.MemoryMiBPerGPU, r.ShareMilli = 0, 0
	}
	return parts, true
}
