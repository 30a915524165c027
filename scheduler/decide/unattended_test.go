// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// The groups of a job that Nomad starts by itself start together, so that the queue has to pay for all
// of them: of a periodic job those wait that are too much, others are refused.
func TestGroupsThatStartByThemselvesArePaidForTogether(t *testing.T) {
	const one = servicetest.OneGPU
	two := strings.Replace(one, "gpus = 1", "gpus = 2", 1)
	const below = "queue \"top\" {\n gpus = 1\n borrow = false\n}\nqueue \"q\" {\n parent = \"top\"\n gpus = 0.5\n namespaces = [\"default\"]\n}\nqueue \"r\" {\n parent = \"top\"\n gpus = 0.5\n allow_namespaces = [\"default\"]\n}\n"
	sysbatch, system, parameterized := byClock("p", "1", 1), byClock("p", "1", 1), byClock("p", "1", 1)
	sysbatch.JobType = "sysbatch"
	system.JobType, system.Later, system.ByClock = "system", false, false
	parameterized.ByClock = false
	for name, row := range map[string]struct {
		config string
		ask    admit.Ask
		queue  string // of the second group
		held   bool   // the second group is
		status int
	}{
		"periodic":                              {config: one, ask: byClock("p", "1", 1), held: true},
		"periodic, and there is quota":          {config: two, ask: byClock("p", "1", 1)},
		"periodic, in two queues":               {config: below, ask: byClock("p", "1", 1), queue: "r", held: true},
		"periodic on each node":                 {config: one, ask: sysbatch, status: 403},
		"periodic on each node, there is quota": {config: two, ask: sysbatch},
		"system":                                {config: one, ask: system, status: 403},
		"system, and there is quota":            {config: two, ask: system},
		"system, in two queues":                 {config: below, ask: system, queue: "r", status: 403},
		"parameterized":                         {config: one, ask: parameterized, status: 403},
		"parameterized, there may be quota":     {config: two, ask: parameterized},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, servicetest.Machine("a", 2))
			second := row.ask
			second.Group, second.Queue = "h", row.queue
			d, err := b.Decide(t.Context(), []admit.Ask{row.ask, second}, true)
			if refusal := (*admit.Refusal)(nil); row.status > 0 {
				if !errors.As(err, &refusal) || refusal.Status != row.status || !strings.Contains(refusal.Text, `group "h"`) {
					t.Errorf("got %+v, %v", d, err)
				}
				return
			}
			if err != nil || d[0].Hold != nil || (d[1].Hold != nil) != row.held {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// No more periodic jobs are registered without a hold than the queue could pay for if a child of each
// started now: those that are stopped, that wait or that pay elsewhere do not count.
func TestPeriodicJobsThatDoNotWaitArePaidForTogether(t *testing.T) {
	const elsewhere = "queue \"r\" {\n gpus = 2\n borrow = false\n allow_namespaces = [\"default\"]\n}\n"
	b := servicetest.New(t, strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = 2", 1)+elsewhere, servicetest.Machine("a", 4))
	register := func(id, queue string) (said string) {
		t.Helper()
		a := byClock(id, "1", 1)
		a.Queue = queue
		d := b.Submit(t, a)
		showPeriodic(b, a)
		b.LetTimePass()
		if d.Hold == nil {
			return ""
		}
		return d.Hold.Sentence
	}
	for _, id := range []string{"one", "two", "one", "two"} {
		if said := register(id, ""); said != "" {
			t.Errorf("%s waits: %s", id, said)
		}
	}
	for _, id := range []string{"three", "four"} {
		if said := register(id, ""); !strings.Contains(said, "queue q may hold at most 2 GPUs, and this needs 3 with a child of each other periodic job that does not wait") {
			t.Errorf("%s: %q", id, said)
		}
	}
	if said := register("elsewhere", "r"); said != "" {
		t.Errorf("in another queue: %q", said)
	}
	everywhere := byClock("everywhere", "1", 1)
	everywhere.JobType = "sysbatch"
	if d, err := b.Decide(t.Context(), []admit.Ask{everywhere}, true); err == nil || !strings.Contains(err.Error(), "that does not wait") {
		t.Errorf("on each node: %+v, %v", d, err)
	}
	j := b.Job(nomad.JobKey{Namespace: "default", ID: "one"})
	b.Index++
	j.Index, j.Periodic = b.Index, false
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
	if said := register("three", ""); said != "" {
		t.Errorf("one is stopped: %q", said)
	}
	if said := register("one", ""); said == "" {
		t.Error("it starts again, and does not wait")
	}
}

// For an hour after a child of a periodic job took its queue above the limit, those that are
// registered there wait, and their children; the next leader knows of it.
func TestAfterAnOverrunPeriodicJobsWait(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	stays := byClock("stays", "8G", 1)
	b.Submit(t, stays)
	showPeriodic(b, stays)
	b.LetTimePass()
	b.State.Do(func(tx *state.Tx) { tx.NoteOverrun("q") })
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := b.Decide(t.Context(), []admit.Ask{stays}, true); err != nil || d[0].Hold != nil {
		t.Errorf("as it was: %+v, %v", d, err)
	}
	next := servicetest.After(t, b, time.Minute, servicetest.OneGPU, servicetest.Machine("a", 2))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*servicetest.Service{"it": b, "the next leader": next} {
		d, err := s.Decide(t.Context(), []admit.Ask{byClock("p", "4G", 1)}, true)
		if err != nil || d[0].Hold == nil || !strings.Contains(d[0].Hold.Sentence, "a child of a periodic job took queue q above its limit within the last hour; each child") {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		s.Pass(time.Hour)
		s.Expire()
		if d, err := s.Decide(t.Context(), []admit.Ask{byClock("p", "4G", 1)}, true); err != nil || d[0].Hold != nil {
			t.Errorf("%s, an hour later: %+v, %v", name, d, err)
		}
	}
}
