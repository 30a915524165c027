// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/miglayout"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Cutter writes an order to cut a GPU again, or takes it back; *nomad.Actor does.
type Cutter interface {
	Recut(ctx context.Context, nodeID, uuid string, order *gpu.MIGOrder) error
}

// Recuts has GPUs cut again for what waits, where their layouts follow demand. All that it
// remembers is what makes it slow to act: the orders themselves are in the metadata of nodes,
// and what became of them is told by the device plugin.
type Recuts struct {
	Cutter Cutter

	ordered map[string]ordered   // the last order of this replica, by GPU
	vain    map[string]time.Time // since when an order serves nothing, or was taken back, by its ID
	need    map[string]float64   // instances of a profile in use or waited for, smoothed
	learned time.Time
}

type ordered struct {
	id   string
	at   time.Time
	make []gpu.MIGPlace
}

// needMemory is over how long the need for instances is smoothed.
const needMemory = 2 * time.Hour

// expect is how many instances of each profile are likely to be needed at one time.
func (r *Recuts) expect(now time.Time, need map[string]float64) map[string]float64 {
	if r.need == nil {
		r.need, r.learned = need, now
	}
	keep := math.Exp(-now.Sub(r.learned).Seconds() / needMemory.Seconds())
	for name := range r.need {
		r.need[name] *= keep
	}
	for name, n := range need {
		r.need[name] += n * (1 - keep)
	}
	r.learned = now
	return maps.Clone(r.need)
}

// recut orders what is worth to be cut again for what waits.
func (l *Loop) recut(ctx context.Context) {
	if l.Recuts == nil {
		return
	}
	var answer miglayout.Answer
	var back []miglayout.GPU
	l.State.Do(func(tx *state.Tx) {
		if tx.Cluster.Ready() != nil {
			return
		}
		m := decide.MIGDemand(tx)
		if len(m.GPUs) > 0 {
			answer, back = l.Recuts.decide(tx.Now(), m), l.Recuts.takeBack(tx.Now(), m)
		}
		tx.NoteUncut(answer.Left)
	})
	if l.Config().Preemption.DryRun {
		return
	}
	for _, g := range back {
		err := l.Recuts.Cutter.Recut(ctx, g.Node, g.ID, nil)
		l.report("take back the order to cut a GPU of node "+g.Node, err)
		if err == nil {
			delete(l.Recuts.ordered, g.ID)
			text := g.Name + " is not cut again: nothing waits for it any more"
			l.Logger.Info("recut", "text", text)
			l.State.Do(func(tx *state.Tx) { tx.Note(view.Event{Kind: "recut", Text: text}) })
		}
	}
	for _, cut := range answer.Cuts {
		order := gpu.MIGOrder{Version: gpu.MIGOrderVersion, ID: orderID(cut, time.Now()), Remove: cut.Remove, Make: cut.Make, For: strings.Join(cut.For, ", ")}
		l.Recuts.ordered[cut.GPU] = ordered{order.ID, time.Now(), cut.Make} // also where it fails: it may have been written
		err := l.Recuts.Cutter.Recut(ctx, cut.Node, cut.GPU, &order)
		l.report("have a GPU of node "+cut.Node+" cut again", err)
		if err != nil {
			continue
		}
		l.Logger.Info("recut", "text", cut.Text)
		l.State.Do(func(tx *state.Tx) {
			tx.Note(view.Event{Kind: "recut", For: order.For, Text: cut.Text})
		})
	}
}

// orderID is one that no other order of a GPU has.
func orderID(cut miglayout.Cut, now time.Time) string {
	return fmt.Sprintf("%s-%.8s", now.UTC().Format("20060102T150405.000Z"), strings.TrimPrefix(cut.GPU, "GPU-"))
}

// takeBack are the GPUs whose orders have served nothing for a while.
func (r *Recuts) takeBack(now time.Time, m decide.MIG) (back []miglayout.GPU) {
	since := map[string]time.Time{}
	for _, g := range m.GPUs {
		id := m.Vain[g.ID]
		if id == "" {
			continue
		}
		since[id] = now
		if at, known := r.vain[id]; known {
			since[id] = at
		}
		if now.Sub(since[id]) >= miglayout.DefaultRules.Patience {
			since[id] = now // it is tried again where it is there still
			back = append(back, g)
		}
	}
	r.vain = since
	return back
}

func (r *Recuts) decide(now time.Time, m decide.MIG) miglayout.Answer {
	gpus, wants, answered := m.GPUs, m.Wants, m.Answered
	if r.ordered == nil {
		r.ordered = map[string]ordered{}
	}
	need := map[string]float64{}
	for i := range gpus {
		g := &gpus[i]
		for _, instance := range g.Instances {
			if instance.Busy {
				need[instance.Profile]++
			}
		}
		switch last, known := r.ordered[g.ID]; {
		case !known || now.Sub(last.at) >= miglayout.DefaultRules.Rest:
		case answered[g.ID] != last.id:
			if !g.Cutting { // nodes tell of their metadata late
				g.Cutting, g.Coming = true, last.make
			}
		case g.Unready == "":
			g.Unready = "was ordered to be cut a moment ago" // which it may have refused
		}
	}
	for _, w := range wants {
		if w.Why == "" {
			need[w.Profiles[0]] += float64(w.Instances())
		}
	}
	return miglayout.Decide(now, gpus, wants, r.expect(now, need), miglayout.DefaultRules)
}
