// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// halves is a cluster of two nodes, each with half a GPU in use of two, of jobs x and y.
func halves(t *testing.T, config string) *servicetest.Service {
	t.Helper()
	b := servicetest.New(t, config, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	for id, machine := range map[string]string{"x": "a", "y": "b"} {
		a := servicetest.Ask(id, "0.5", 1)
		a.JobType = "batch"
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "alloc-"+id, machine, 0, 0, 8)
	}
	b.Pass(5 * time.Hour)
	return b
}

func saves(b *servicetest.Service, id string) {
	b.State.Saved(map[nomad.JobKey]time.Time{{Namespace: "default", ID: id}: b.Clock.At})
}

// noteOf is what people read of the one that waits.
func noteOf(t *testing.T, b *servicetest.Service) string {
	t.Helper()
	pending := b.Cluster(t).Pending
	if len(pending) != 1 {
		t.Fatalf("%d groups wait", len(pending))
	}
	return pending[0].Note
}

// Of what could be moved for a job that waits, that is moved whose work is saved; it is
// told why nothing is, without a word about whose work that would be.
func TestWorkMovesForWhatWaits(t *testing.T) {
	waits := nomad.JobKey{Namespace: "default", ID: "waits"}
	for name, row := range map[string]struct {
		before func(b *servicetest.Service)
		most   int
		moves  string // which alloc, and where to
		note   string
	}{
		"its work is saved":        {func(b *servicetest.Service) { saves(b, "y") }, 2, "alloc-y to id-a", ""},
		"nothing is saved":         {func(*servicetest.Service) {}, 2, "", "moves that would make room do not pay: they lose 2h30m2s of GPU time, and win 2h0m0s"},
		"it was moved just now":    {func(b *servicetest.Service) { saves(b, "y"); moved(b, "y") }, 2, "", "moves that would make room do not pay"},
		"it is not known":          {func(b *servicetest.Service) { saves(b, "y"); unrecord(b) }, 2, "", "no moves of running work would make room"},
		"room is on its way":       {func(b *servicetest.Service) { saves(b, "y"); b.Assume(b.Relief(2).Evict.Promises[0]) }, 2, "", ""},
		"it waits for a moment":    {func(b *servicetest.Service) { saves(b, "y"); b.Clock.At = b.Clock.At.Add(-2 * time.Second) }, 2, "", ""},
		"it waits for long enough": {func(b *servicetest.Service) { saves(b, "y"); b.Clock.At = b.Clock.At.Add(-time.Second) }, 2, "alloc-y to id-a", ""},
		"Nomad has not answered":   {func(b *servicetest.Service) { saves(b, "y"); b.Clock.At = b.Clock.At.Add(time.Hour) }, 2, "", ""},
		"nothing is known of it":   {func(b *servicetest.Service) { saves(b, "y"); b.State.Do(func(tx *state.Tx) { tx.ForgetRecord(waits) }) }, 2, "", ""},
		"it cannot be changed": {func(b *servicetest.Service) {
			saves(b, "y")
			change(b, waits, func(j *nomad.Job) { j.Dispatched = true })
		}, 2, "", ""},
		"it was changed around": {func(b *servicetest.Service) {
			saves(b, "y")
			change(b, waits, func(j *nomad.Job) { j.Groups[0].Registered = "other" })
		}, 2, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := halves(t, servicetest.Quick)
			b.Waits(t, "waits", "2", 50)
			row.before(b)
			item := b.Relief(row.most)
			if item == nil {
				if note := noteOf(t, b); row.moves != "" || !strings.Contains(note, row.note) || strings.Contains(note, "alloc-") {
					t.Errorf("nothing moves, and it is told %q", note)
				}
				return
			}
			v := item.Evict.Victims
			if got := v[0].AllocID + " to " + v[0].To; len(v) != 1 || got != row.moves || !item.Evict.Moves || item.Revision.Prefer != v[0].Node {
				t.Fatalf("%+v", item.Evict)
			}
			if !strings.Contains(v[0].Text, "so that job default/waits finds room for 2") || !strings.Contains(v[0].Text, "no work is lost") {
				t.Errorf("it is told %q", v[0].Text)
			}
			if p := item.Evict.Promises; len(p) != 2 || p[0].Job.ID != "waits" || p[1].Job.ID != "y" || p[1].Usage.NodeID != "id-a" {
				t.Errorf("promises %+v", item.Evict.Promises)
			}
		})
	}
}

func moved(b *servicetest.Service, id string) {
	b.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "move", Namespace: "default", JobID: id, AllocID: "alloc-" + id})
	})
}

// unrecord loses what is recorded of all jobs that run.
func unrecord(b *servicetest.Service) {
	for _, id := range []string{"x", "y"} {
		a := servicetest.Ask(id, "0.5", 1)
		a.JobType = "batch"
		b.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(a)) })
	}
}

// A gang that waits gets room for all of it at once, or nothing is moved for it.
func TestWorkMovesForAGang(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2), servicetest.Machine("b", 2), servicetest.Machine("c", 1))
	for id, machine := range map[string]string{"x": "a", "y": "b", "z": "c"} {
		a := servicetest.Ask(id, "0.25", 1)
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "alloc-"+id, machine, 0, 0, 4)
	}
	waits := servicetest.Ask("waits", "2", 2)
	waits.Gang = true
	b.Submit(t, waits)
	b.Register(waits)
	b.Block(waits, 2)
	b.Pass(3 * time.Second)
	if item := b.Relief(1); item != nil {
		t.Fatalf("one move is not enough, and %+v", item.Evict)
	}
	item := b.Relief(2)
	if item == nil || len(item.Evict.Victims) != 2 || item.Revision.Prefer != "" || len(item.Evict.Promises) != 4 {
		t.Fatalf("got %+v, %q", item, noteOf(t, b))
	}
	for _, v := range item.Evict.Victims {
		if v.To != "id-c" || v.Gang {
			t.Errorf("%+v", v)
		}
	}
}

// What runs together does not move apart, and a job moves once an hour at most.
func TestWhatDoesNotMove(t *testing.T) {
	for name, row := range map[string]struct {
		change func(b *servicetest.Service, a admit.Ask)
		moves  bool
	}{
		"as it is":                 {func(*servicetest.Service, admit.Ask) {}, true},
		"one of a gang":            {func(b *servicetest.Service, a admit.Ask) { a.Gang = true; b.Show(a, true) }, false},
		"moved a moment ago":       {func(b *servicetest.Service, a admit.Ask) { moved(b, a.JobID) }, false},
		"moved an hour ago":        {func(b *servicetest.Service, a admit.Ask) { moved(b, a.JobID); b.Pass(time.Hour) }, true},
		"would have been moved":    {func(b *servicetest.Service, a admit.Ask) { wouldMove(b, a.JobID) }, true},
		"for what waits for quota": {func(b *servicetest.Service, _ admit.Ask) { waitsForQuota(t, b) }, true},
	} {
		b := drained(t)
		a := servicetest.Ask("batch", "1", 1)
		a.JobType = "batch"
		row.change(b, a)
		saves(b, "batch")
		if moves := b.Moves(5); row.moves != (len(moves) == 1) {
			t.Errorf("%s: moves %+v", name, moves)
		}
	}
}

func wouldMove(b *servicetest.Service, id string) {
	b.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "move", Namespace: "default", JobID: id, AllocID: "alloc-" + id, DryRun: true})
	})
}

func waitsForQuota(t *testing.T, b *servicetest.Service) {
	t.Helper()
	a := servicetest.Ask("second", "1", 1)
	b.Submit(t, a)
	b.Register(a)
	b.Block(a, 1)
	b.Pass(time.Second)
}

// drained is a cluster of which one node is drained. A batch job runs on there, as Nomad
// lets it.
func drained(t *testing.T) *servicetest.Service {
	t.Helper()
	a, other := servicetest.Machine("a", 2), servicetest.Machine("b", 2)
	b := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, a, other)
	batch := servicetest.Ask("batch", "1", 1)
	batch.JobType = "batch"
	b.Submit(t, batch)
	b.Register(batch)
	b.Run(batch, "alloc-batch", "a", 0, 0, 16)
	gone := *a
	gone.View.Draining, gone.View.Eligible, gone.Plan.Ineligible = true, false, true
	b.State.Apply([]nomad.Change{{Node: &gone}}, b.Index+1)
	b.Pass(3 * time.Hour)
	return b
}

// Batch work leaves a node that is drained when its work is saved, and not before.
func TestDrainedNodesAreEmptied(t *testing.T) {
	b := drained(t)
	if moves := b.Moves(5); len(moves) != 0 {
		t.Fatalf("three hours of work would be lost: %+v", moves)
	}
	saves(b, "batch")
	moves := b.Moves(5)
	if len(moves) != 1 || moves[0].AllocID != "alloc-batch" || moves[0].To != "id-b" {
		t.Fatalf("moves %+v", moves)
	}
	if want := "alloc alloc-ba of job default/batch moves from node a to b, because that node is being drained; no work is lost"; moves[0].Text != want {
		t.Errorf("told: %q", moves[0].Text)
	}
}

// Where hot GPUs are not avoided, none loses work for its heat.
func TestHeatCountsWhereHotGPUsAreAvoided(t *testing.T) {
	for avoided, want := range map[bool]int{false: 0, true: 1} {
		b := servicetest.New(t, fmt.Sprintf("%splacement {\n avoid_hot = %v\n}\n", servicetest.Quick, avoided), servicetest.Machine("a", 1), servicetest.Machine("b", 1))
		for i, id := range []string{"x", "y"} {
			a := servicetest.Ask(id, "0.25", 1)
			a.Tasks[0].LimitMilli = 1000
			b.Submit(t, a)
			b.Register(a)
			b.Run(a, "alloc-"+id, "a", 0, 4*i, 4)
		}
		for range 25 {
			b.Pass(30 * time.Second)
			for _, name := range []string{"a", "b"} {
				milli := map[string]int64{"a": 1000}[name]
				b.State.Measured("id-"+name, nomad.Measurements{GPUs: map[string]view.Measured{"GPU-" + name + "-0": {Milli: milli, MemoryMiB: 100}}})
			}
		}
		if moves := b.Moves(5); len(moves) != want {
			t.Errorf("avoided %v: moves %+v", avoided, moves)
		}
	}
}

// A GPU that several tasks have used fully for as long as an interval loses one.
func TestHotGPUsLoseWork(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	for i, id := range []string{"x", "y"} {
		a := servicetest.Ask(id, "0.25", 1)
		a.Tasks[0].LimitMilli = 1000
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "alloc-"+id, "a", 0, 4*i, 4)
	}
	b.Pass(time.Second)
	measure := func(milli int64) {
		b.State.Measured("id-a", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-a-0": {Milli: milli, MemoryMiB: 100}}})
		b.State.Measured("id-b", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-b-0": {Milli: 0, MemoryMiB: 0}}})
	}
	measure(1000)
	for range 18 {
		b.Pass(30 * time.Second)
		measure(1000)
	}
	if moves := b.Moves(5); len(moves) != 0 {
		t.Fatalf("it is hot for nine minutes, and %+v", moves)
	}
	b.Pass(time.Minute)
	measure(1000)
	moves := b.Moves(5)
	if len(moves) != 1 || moves[0].To != "id-b" || !strings.Contains(moves[0].Text, "because several tasks have used its GPU fully for 10m0s or longer") {
		t.Fatalf("moves %+v", moves)
	}
	measure(900) // for a moment
	measure(1000)
	if moves := b.Moves(5); len(moves) != 0 {
		t.Errorf("it has been hot for a moment, and %+v", moves)
	}
	b.Pass(20 * time.Minute) // without a measurement
	if moves := b.Moves(5); len(moves) != 0 {
		t.Errorf("it was hot long ago, and %+v", moves)
	}
	measure(1000)
	if moves := b.Moves(5); len(moves) != 0 {
		t.Errorf("it is not known to have been hot all the time, and %+v", moves)
	}
}
