package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// registerAs shows a job with what an admission left in it, whatever the service
// recorded: a revert, an edit, or a forgery. It returns the ask as it is read.
func (b *bench) registerAs(a admit.Ask, was *admit.Earlier) admit.Ask {
	b.show(a, false)
	a.Was = was
	j := *b.book.jobs[nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}]
	b.index++
	j.Index = b.index
	j.Groups[0].Was, j.Groups[0].Registered = was, a.Registered()
	b.book.Apply([]nomad.Change{{Job: &j}}, b.index)
	return a
}

// letTimePass goes on until Nomad has told of everything.
func (b *bench) letTimePass() {
	b.clock.at = b.clock.at.Add(echo + time.Second)
	b.book.Heard()
}

// aligned does what is due for a job that is not registered as recorded, and
// returns what it is registered as then.
func (b *bench) aligned(t *testing.T, a admit.Ask) *admit.Decision {
	t.Helper()
	due := b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != a.JobID || !due.Revision.Align {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if d == nil {
		return nil
	}
	b.Settle(t.Context(), []admit.Ask{a}, d, true)
	return &d[0]
}

// Regression: the record was believed over what is registered, so that a job which
// was reverted to a version that waited, or left a node out, waited for ever.
func TestARevertedJobIsDecidedAbout(t *testing.T) {
	for name, was := range map[string]func(admit.Decision) *admit.Earlier{
		"to a version that waited": func(d admit.Decision) *admit.Earlier {
			e := wasOf(d)
			e.Hold = "quota: queue q holds 1 of at most 1 GPUs"
			return e
		},
		"to a version that left every node out": func(d admit.Decision) *admit.Earlier {
			e := wasOf(d)
			e.Candidates = []string{noNode}
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, oneGPU, machine("a", 1))
			a := ask("job", "8G", 1)
			d := b.decide(t, a)
			b.register(a)
			b.letTimePass()
			if due := b.book.NextDue(nil, true); due != nil {
				t.Fatalf("nothing is different, and yet %+v", due)
			}
			a = b.registerAs(a, was(d))
			b.block(a, 1)
			again := b.aligned(t, a)
			if again == nil || again.Hold != nil || len(again.Candidates) > 0 {
				t.Fatalf("got %+v", again)
			}
			b.register(a)
			b.letTimePass()
			if due := b.book.NextDue(nil, true); due != nil && due.Revision.Align {
				t.Errorf("it is registered as decided, and yet %+v", due)
			}
		})
	}
}

// What the marks say is enough: neither a lost Variable nor a leader without the
// record leaves a job waiting.
func TestAHeldJobWithoutARecordIsLetGo(t *testing.T) {
	for name, lose := range map[string]func(*bench) *bench{
		"the Variable is gone": func(b *bench) *bench { clear(b.store.items); return b },
		"the next leader never saw it": func(b *bench) *bench {
			next := newBench(t, oneGPU, machine("a", 1))
			next.clock.at = b.clock.at
			next.book.Heard()
			return next
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, oneGPU, machine("a", 1))
			first, second := ask("first", "1", 1), ask("second", "8G", 1)
			b.decide(t, first)
			b.register(first)
			b.run(first, "alloc", "a", 0, 0, 16)
			d := b.decide(t, second)
			if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
				t.Fatalf("got %+v", d)
			}
			b.register(second)
			b.letTimePass()
			b.end("alloc")
			b = lose(b)
			second = b.registerAs(second, wasOf(d))
			b.block(second, 1)
			b.letTimePass()
			due := b.book.NextDue(nil, true)
			if due == nil {
				t.Fatal("it waits for ever")
			}
			again, err := b.Revise(t.Context(), []admit.Ask{second}, due.Revision)
			if err != nil || again == nil || again[0].Hold != nil {
				t.Fatalf("got %+v, %v", again, err)
			}
			if len(b.store.items) == 0 {
				t.Error("nothing is recorded")
			}
		})
	}
}

// Device blocks that run are kept when their record is lost: others would replace
// every alloc.
func TestALostRecordRestartsNothing(t *testing.T) {
	b := newBench(t, "", machine("a", 2))
	a := ask("job", "0.5", 1)
	a.Tasks[0].Driver = "raw_exec"
	d := b.decide(t, a)
	d.Tasks[0].Devices[0].Count = 9 // as an earlier release would have decided
	next := newBench(t, "", machine("a", 2))
	next.registerAs(a, wasOf(d))
	next.run(a, "alloc", "a", 0, 0, 9)
	if again := next.decide(t, a); again.Tasks[0].Devices[0].Count != 9 {
		t.Errorf("the running alloc would be replaced: %+v", again.Tasks[0].Devices)
	}
}

// A mark is a public word: a job is not known by it.
func TestAForgedMarkAdmitsNothing(t *testing.T) {
	b := newBench(t, "preemption {\n hold_direct_jobs = true\n}\n"+oneGPU, machine("a", 2))
	forged := b.around("forged", 50, 16)
	forged = b.registerAs(forged, &admit.Earlier{Tasks: []admit.TaskDecision{{Task: "t"}}})
	other := b.around("other", 60, 16)
	b.run(forged, "alloc-forged", "a", 0, 0, 16)
	b.run(other, "alloc-other", "a", 1, 0, 16)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != "forged" || due.Revision.Hold == nil {
		t.Fatalf("due is %+v", due)
	}
}

// child shows a child of a job that was admitted, with the parent's decision in it.
func (b *bench) child(parent admit.Ask, id string, d admit.Decision) admit.Ask {
	a := parent
	a.JobID, a.Later = id, false
	a = b.registerAs(a, wasOf(d))
	j := *b.book.jobs[nomad.JobKey{Namespace: a.Namespace, ID: id}]
	b.index++
	j.Index, j.Parent = b.index, parent.JobID
	asParent := a
	asParent.JobID = parent.JobID
	j.Groups[0].Inherited = asParent.Registered()
	b.book.Apply([]nomad.Change{{Job: &j}}, b.index)
	return a
}

// Children of periodic and parameterized jobs have no record of their own.
func TestAChildIsTreatedLikeAnyJob(t *testing.T) {
	later := func(job, request string, priority int) admit.Ask {
		a := ask(job, request, 1)
		a.JobType, a.Later, a.Priority = "batch", true, priority
		return a
	}
	t.Run("it evicts as its priority may", func(t *testing.T) {
		b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1))
		low := ask("low", "1", 1)
		low.Priority = 20
		b.decide(t, low)
		b.register(low)
		b.run(low, "alloc-low", "a", 0, 0, 16)
		parent := later("parent", "1", 90)
		d := b.decide(t, parent)
		b.register(parent)
		c := b.child(parent, "parent/dispatch-1", d)
		b.block(c, 1)
		b.letTimePass()
		if b.aligned(t, c); b.book.direct(nomad.JobKey{Namespace: "default", ID: c.JobID}) {
			t.Error("it counts as submitted around the service")
		}
		b.register(c)
		b.letTimePass()
		due := b.book.NextDue(nil, true)
		if due == nil || due.Evict == nil || due.Evict.Victims[0].AllocID != "alloc-low" {
			t.Errorf("due is %+v", due)
		}
	})
	t.Run("its queue's limit binds it", func(t *testing.T) {
		b := newBench(t, oneGPU, machine("a", 2))
		parent := later("parent", "1", 50)
		d := b.decide(t, parent)
		b.register(parent)
		for i, id := range []string{"parent/periodic-1", "parent/periodic-2"} {
			c := b.child(parent, id, d)
			b.run(c, "alloc-"+id, "a", i, 0, 16)
			if b.book.direct(nomad.JobKey{Namespace: "default", ID: id}) {
				t.Error("it counts as submitted around the service")
			}
			b.clock.at = b.clock.at.Add(time.Second)
		}
		b.letTimePass()
		due := b.book.NextDue(nil, true)
		if due == nil || due.Job.ID != "parent/periodic-2" || due.Revision.Hold == nil {
			t.Errorf("due is %+v", due)
		}
	})
}

// Growth that nobody decided about is charged like anything else: within the limit
// it is adopted, above it the group goes back to waiting.
func TestGrowthAroundTheServiceIsBroughtBack(t *testing.T) {
	for name, row := range map[string]struct {
		slices int
		held   bool
	}{"within the limit": {8, false}, "above it": {16, true}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, oneGPU, machine("a", 2))
			a := ask("job", fmt.Sprintf("%dG", row.slices), 1)
			d := b.decide(t, a)
			b.register(a)
			b.run(a, "alloc-0", "a", 0, 0, row.slices)
			b.letTimePass()
			if due := b.book.NextDue(nil, true); due != nil {
				t.Fatalf("nothing is different, and yet %+v", due)
			}
			a.Count = 2
			a = b.registerAs(a, wasOf(d))
			b.run(a, "alloc-1", "a", 1, 0, row.slices)
			due := b.book.NextDue(nil, true)
			if due == nil || (due.Revision.Hold != nil) != row.held || due.Revision.Align == row.held {
				t.Fatalf("due is %+v", due)
			}
			if row.held {
				return
			}
			if changed, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision); err != nil || changed != nil {
				t.Errorf("got %+v, %v", changed, err)
			}
			if due := b.book.NextDue(nil, true); due != nil {
				t.Errorf("it is adopted, and yet %+v", due)
			}
		})
	}
}
