package decide

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// scattered is a cluster in which every GPU is half full.
func scattered(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 2), machine("b", 2))
	for i, name := range []string{"a", "a", "b", "b"} {
		a := ask("job-"+string(rune('0'+i)), "0.5", 1)
		b.decide(t, a)
		b.register(a)
		b.run(a, "alloc-"+a.JobID, name, i%2, 0, 8)
	}
	b.clock.at = b.clock.at.Add(time.Second)
	return b
}

func TestMoves(t *testing.T) {
	b := scattered(t)
	moves := b.book.Moves(5)
	if len(moves) == 0 {
		t.Fatal("every GPU is half full, and nothing moves")
	}
	if len(b.book.Moves(1)) != 1 {
		t.Error("the bound on moves is not kept")
	}
	m := moves[0]
	if m.From == m.To || b.book.allocs[m.AllocID] == nil || !strings.Contains(m.Text, "milli of GPU from going to waste") {
		t.Errorf("a move that cannot be: %+v", m)
	}
	b.book.Promise(m.Promise)
	if len(b.book.flights) != 1 || b.book.Moves(5) != nil {
		t.Error("more moves are proposed while one is under way")
	}
	b.book.Withdraw(m.Promise)
	if len(b.book.Moves(5)) != len(moves) {
		t.Error("a move that was given up is not proposed again")
	}
}

// Work of a group is moved one alloc at a time, while all of it runs.
func TestMovesLeaveAGroupItsOthers(t *testing.T) {
	for name, row := range map[string]struct {
		change func(b *bench, a admit.Ask)
		moves  bool
	}{
		"all of it runs": {func(*bench, admit.Ask) {}, true},
		"one is missing": {func(b *bench, a admit.Ask) { a.Count = 3; b.register(a) }, false},
		"one is starting": {func(b *bench, _ admit.Ask) {
			starting := *b.book.allocs["one"]
			starting.Status = "pending"
			b.book.Apply([]nomad.Change{{Alloc: &starting}}, b.index)
		}, false},
		"one is not healthy yet": {func(b *bench, _ admit.Ask) {
			started := *b.book.allocs["one"]
			started.Healthy = false
			b.book.Apply([]nomad.Change{{Alloc: &started}}, b.index)
		}, false},
		"nobody watches the health of a batch job": {func(b *bench, a admit.Ask) {
			a.JobType = "batch"
			b.register(a)
			for _, id := range []string{"one", "two"} {
				alloc := *b.book.allocs[id]
				alloc.Healthy = false
				b.book.Apply([]nomad.Change{{Alloc: &alloc}}, b.index)
			}
		}, true},
		"its migrate block has it stay": {func(b *bench, a admit.Ask) {
			job := *b.book.jobs[nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}]
			job.Groups = slices.Clone(job.Groups)
			job.Groups[0].Stays = true
			b.book.Apply([]nomad.Change{{Job: &job}}, b.index)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 2), machine("b", 2))
			a := ask("job", "0.5", 2)
			b.decide(t, a)
			b.register(a)
			b.run(a, "one", "a", 0, 0, 8)
			b.run(a, "two", "b", 0, 0, 8)
			for _, name := range []string{"a", "b"} { // nothing is recorded of them, so they stay
				stays := ask("stays-"+name, "0.5", 1)
				b.register(stays)
				b.run(stays, "alloc-"+name, name, 1, 0, 8)
			}
			row.change(b, a)
			b.clock.at = b.clock.at.Add(time.Second)
			moves := b.book.Moves(5)
			if row.moves != (len(moves) == 1) {
				t.Errorf("moves %+v", moves)
			}
		})
	}
}
