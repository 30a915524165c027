// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// scattered is a cluster in which every GPU is half full.
func scattered(t *testing.T) *servicetest.Service {
	t.Helper()
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	for i, name := range []string{"a", "a", "b", "b"} {
		a := servicetest.Ask("job-"+string(rune('0'+i)), "0.5", 1)
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "alloc-"+a.JobID, name, i%2, 0, 8)
	}
	b.Clock.At = b.Clock.At.Add(time.Second)
	return b
}

func TestMoves(t *testing.T) {
	b := scattered(t)
	moves := b.Moves(5)
	if len(moves) == 0 {
		t.Fatal("every GPU is half full, and nothing moves")
	}
	if len(b.Moves(1)) != 1 {
		t.Error("the bound on moves is not kept")
	}
	m := moves[0]
	if m.From == m.To || b.Alloc(m.AllocID).ID == "" || !strings.Contains(m.Text, "GPU from going to waste") {
		t.Errorf("a move that cannot be: %+v", m)
	}
	b.Assume(m.Promise)
	if len(b.AllAssumed()) != 1 || b.Moves(5) != nil {
		t.Error("more moves are proposed while one is under way")
	}
	b.State.Do(m.Promise.Forget)
	if len(b.Moves(5)) != len(moves) {
		t.Error("a move that was given up is not proposed again")
	}
}

// The new place of what moves is paid for as the old one is.
func TestAMoveIsPaidForByTheSameQueue(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick+"queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	for i, name := range []string{"a", "a", "b", "b"} {
		a := servicetest.Ask(fmt.Sprint("job-", i), "0.5", 1)
		a.Priority = 30 + i
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "alloc-"+a.JobID, name, i%2, 0, 8)
	}
	b.LetTimePass()
	moves := b.Moves(5)
	if len(moves) == 0 {
		t.Fatal("every GPU is half full, and nothing moves")
	}
	for _, m := range moves {
		job := b.Job(m.Job)
		if u := m.Usage; u.Queue != "q" || u.Priority != job.Priority || u.NodeID != m.To {
			t.Errorf("promised %+v to job %s of priority %d", u, m.Job.ID, job.Priority)
		}
	}
}

// Work of a group is moved one alloc at a time, while all of it runs.
func TestMovesLeaveAGroupItsOthers(t *testing.T) {
	for name, row := range map[string]struct {
		change func(b *servicetest.Service, a admit.Ask)
		moves  bool
	}{
		"all of it runs": {func(*servicetest.Service, admit.Ask) {}, true},
		"one is missing": {func(b *servicetest.Service, a admit.Ask) { a.Count = 3; b.Register(a) }, false},
		"one is starting": {func(b *servicetest.Service, _ admit.Ask) {
			starting := b.Alloc("one")
			starting.Status = "pending"
			b.State.Apply([]nomad.Change{{Alloc: &starting}}, b.Index)
		}, false},
		"one is not healthy yet": {func(b *servicetest.Service, _ admit.Ask) {
			started := b.Alloc("one")
			started.Healthy = false
			b.State.Apply([]nomad.Change{{Alloc: &started}}, b.Index)
		}, false},
		"nobody watches the health of a batch job": {func(b *servicetest.Service, a admit.Ask) {
			a.JobType = "batch"
			b.Register(a)
			for _, id := range []string{"one", "two"} {
				alloc := b.Alloc(id)
				alloc.Healthy = false
				b.State.Apply([]nomad.Change{{Alloc: &alloc}}, b.Index)
			}
		}, true},
		"its migrate block has it stay": {func(b *servicetest.Service, a admit.Ask) {
			job := b.Job(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID})
			job.Groups = slices.Clone(job.Groups)
			job.Groups[0].Stays = true
			b.State.Apply([]nomad.Change{{Job: &job}}, b.Index)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
			a := servicetest.Ask("job", "0.5", 2)
			b.Submit(t, a)
			b.Register(a)
			b.Run(a, "one", "a", 0, 0, 8)
			b.Run(a, "two", "b", 0, 0, 8)
			for _, name := range []string{"a", "b"} { // nothing is recorded of them, so they stay
				stays := servicetest.Ask("stays-"+name, "0.5", 1)
				b.Register(stays)
				b.Run(stays, "alloc-"+name, name, 1, 0, 8)
			}
			row.change(b, a)
			b.Clock.At = b.Clock.At.Add(time.Second)
			moves := b.Moves(5)
			if row.moves != (len(moves) == 1) {
				t.Errorf("moves %+v", moves)
			}
		})
	}
}
