// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Who killed a job has an answer that lasts: the next leader has it, and the audit
// log gets each event once.
func TestWhatWasDoneSurvivesAChangeOfLeaders(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	b.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "evict", Namespace: "default", JobID: "low", AllocID: "alloc", For: "default/high", Text: "it had to go"})
	})
	b.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "move", Namespace: "default", JobID: "other", AllocID: "alloc-2", Text: "it pays", DryRun: true})
	})
	if told := untold(b); len(told) != 2 || told[0].Text != "it had to go" || len(untold(b)) != 0 {
		t.Errorf("told %+v", told)
	}
	for range 2 { // the second writes nothing
		if err := b.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if index := b.Store.Items["nomad-gpu/history"].Index; index != 2 || len(b.Store.Items) != 2 { // after that of the job
		t.Errorf("written up to index %d of %d items", index, len(b.Store.Items))
	}
	next := servicetest.After(t, b, time.Minute, servicetest.Quick, servicetest.Machine("a", 1))
	for range 2 { // it may lead twice
		if err := next.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c := next.Cluster(t)
	if len(c.Events) != 2 || c.Events[1].For != "default/high" || !c.Events[1].At.Equal(b.Clock.At) {
		t.Errorf("events %+v", c.Events)
	}
	if list := untold(next); len(list) != 0 {
		t.Errorf("told again: %v", list)
	}
	next.State.Do(func(tx *state.Tx) { tx.Note(view.Event{Kind: "hold", Text: "more"}) })
	if err := next.Save(t.Context()); err != nil {
		t.Errorf("the next leader cannot go on writing: %v", err)
	}
}

// A job bears so many evictions within an hour, and no more.
func TestAJobBearsSoManyEvictions(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n max_per_job = 2\n}", servicetest.Machine("a", 2))
	low, other := b.Tenant(t, "low", 20, "a", 0, 0, 16), b.Tenant(t, "other", 30, "a", 1, 0, 16)
	b.Waits(t, "high", "1", 80)
	victim := func() string {
		due := b.Next(nil, true)
		if due == nil || due.Evict == nil {
			return ""
		}
		return due.Evict.Victims[0].AllocID
	}
	gone := func(job string) {
		b.State.Do(func(tx *state.Tx) { tx.Note(view.Event{Kind: "evict", Namespace: "default", JobID: job, AllocID: "x"}) })
	}
	var got []string
	for range 3 {
		v := victim()
		got = append(got, v)
		gone("low")
	}
	if want := []string{"alloc-low", "alloc-low", "alloc-other"}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v", got, want)
	}
	gone("other")
	gone("other")
	if v := victim(); v != "" {
		t.Errorf("%s goes although both have gone twice", v)
	}
	b.Pass(time.Hour)
	b.Expire()
	if v := victim(); v != "alloc-low" {
		t.Errorf("an hour later %q goes", v)
	}
	_, _ = low, other
}

// All jobs of a queue together bear so many, whichever of them; the next leader counts
// on.
func TestAQueueBearsSoManyEvictions(t *testing.T) {
	const text = "preemption {\n min_run_time = \"0s\"\n max_per_queue = 2\n}\nqueue \"q\" {\n gpus = 2\n namespaces = [\"default\"]\n}\n"
	b := servicetest.New(t, text, servicetest.Machine("a", 2))
	b.Tenant(t, "one", 20, "a", 0, 0, 16)
	b.Tenant(t, "two", 20, "a", 1, 0, 16)
	high := b.Waits(t, "high", "1", 80)
	evicts := func(s *servicetest.Service) bool {
		item := s.Next(nil, true)
		return item != nil && item.Evict != nil
	}
	for i, id := range []string{"one", "two"} {
		if !evicts(b) {
			t.Fatalf("no task goes although %d have", i)
		}
		b.State.Do(func(tx *state.Tx) {
			tx.Note(view.Event{Kind: "reclaim", Namespace: "default", JobID: id, AllocID: "alloc-" + id})
		})
	}
	if evicts(b) {
		t.Error("a third goes")
	}
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := servicetest.After(t, b, time.Minute, text, servicetest.Machine("a", 2))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"one", "two"} {
		a := servicetest.Ask(id, "1G", 1)
		a.Priority = 20
		next.Register(a)
		next.Run(a, "alloc-"+id, "a", i, 0, 16)
	}
	next.Register(high)
	next.Block(high, 1)
	next.Pass(10 * time.Second)
	if evicts(next) {
		t.Error("the next leader does not know")
	}
	next.Pass(time.Hour)
	next.Expire()
	if !evicts(next) {
		t.Error("it counts for ever")
	}
}

func untold(s *servicetest.Service) (list []view.Event) {
	s.State.Do(func(tx *state.Tx) { list = tx.Audit.Take() })
	return list
}

// Who stopped a job is known however much was done since, to every replica that comes; a month
// after the last of it, it is forgotten.
func TestWhatWasDoneToAJobOutlastsWhatWasDoneToOthers(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	low := nomad.JobKey{Namespace: "default", ID: "low"}
	note := func(s *servicetest.Service, e view.Event) {
		s.State.Do(func(tx *state.Tx) { tx.Note(e) })
	}
	note(b, view.Event{Kind: "hold", Namespace: "default", JobID: "low", Text: "it waited"})
	note(b, view.Event{Kind: "evict", Namespace: "default", JobID: "low", AllocID: "alloc", For: "default/high", Text: "it had to go"})
	note(b, view.Event{Kind: "evict", Namespace: "default", JobID: "low", AllocID: "alloc", Text: "it was not stopped", Failed: true})
	note(b, view.Event{Kind: "evict", Namespace: "default", JobID: "low", AllocID: "alloc", Text: "it would have to go", DryRun: true})
	for i := range 500 {
		note(b, view.Event{Kind: "hold", Namespace: "default", JobID: fmt.Sprintf("job-%d", i%7), Text: fmt.Sprint(i)})
	}
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := servicetest.After(t, b, time.Minute, servicetest.Quick, servicetest.Machine("a", 1))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := next.Events(t.Context(), low)
	if err != nil || len(got) != 3 || got[0].Text != "it was not stopped" || got[1].For != "default/high" || got[2].Kind != "hold" {
		t.Errorf("it is told %+v, %v", got, err)
	}
	for _, row := range []struct {
		pass time.Duration
		left int
	}{{0, 3}, {time.Hour - time.Second, 3}, {time.Second, 3}, {29 * 24 * time.Hour, 3}, {24*time.Hour - time.Second, 3}, {time.Second, 0}} {
		next.Pass(row.pass)
		if err := next.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := next.Events(t.Context(), low); len(got) != row.left || err != nil {
			t.Errorf("at %s: %d are left, %v", next.Clock.At, len(got), err)
		}
	}
}

// What could not be written with a job is written later, once and in order.
func TestWhatCouldNotBeWrittenWithItsJob(t *testing.T) {
	for at := 1; at <= 4; at++ { // two calls for each of two jobs
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		for i, job := range []string{"x", "y", "x"} {
			s.State.Do(func(tx *state.Tx) {
				tx.Note(view.Event{Kind: "hold", Namespace: "default", JobID: job, Text: fmt.Sprint(i)})
			})
		}
		good := s.Store
		s.UseStore(&nomadtest.Faulty{Store: good, FailAt: at})
		if err := s.Save(t.Context()); !errors.Is(err, nomadtest.ErrFaulty) {
			t.Fatalf("call %d: %v", at, err)
		}
		s.State.Do(func(tx *state.Tx) {
			tx.Note(view.Event{Kind: "release", Namespace: "default", JobID: "x", Text: "3"})
		})
		s.UseStore(good)
		if err := s.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		for job, want := range map[string]string{"x": "320", "y": "1"} {
			got, err := s.Events(t.Context(), nomad.JobKey{Namespace: "default", ID: job})
			var texts string
			for _, e := range got {
				texts += e.Text
			}
			if texts != want || err != nil {
				t.Errorf("call %d: of job %s %q, %v", at, job, texts, err)
			}
		}
	}
}
