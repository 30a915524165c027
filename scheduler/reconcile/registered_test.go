// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// aligned does what is due for a job that is not registered as recorded, and
// returns what it is registered as then.
func aligned(b *servicetest.Service, t *testing.T, a admit.Ask) *admit.Decision {
	t.Helper()
	due := b.Next(nil, true)
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
			e := servicetest.WasOf(d)
			e.Hold = "quota: queue q holds 1 of at most 1 GPUs"
			return e
		},
		"to a version that left every node out": func(d admit.Decision) *admit.Earlier {
			e := servicetest.WasOf(d)
			e.Candidates = []string{"none"}
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
			a := servicetest.Ask("job", "8G", 1)
			d := b.Submit(t, a)
			b.Register(a)
			b.LetTimePass()
			if due := b.Next(nil, true); due != nil {
				t.Fatalf("nothing is different, and yet %+v", due)
			}
			a = b.RegisterAs(a, was(d))
			b.Block(a, 1)
			again := aligned(b, t, a)
			if again == nil || again.Hold != nil || len(again.Candidates) > 0 {
				t.Fatalf("got %+v", again)
			}
			b.Register(a)
			b.LetTimePass()
			if due := b.Next(nil, true); due != nil && due.Revision.Align {
				t.Errorf("it is registered as decided, and yet %+v", due)
			}
		})
	}
}

// What the marks say is enough: neither a lost Variable nor a leader without the
// record leaves a job waiting.
func TestAHeldJobWithoutARecordIsLetGo(t *testing.T) {
	for name, lose := range map[string]func(*servicetest.Service) *servicetest.Service{
		"the Variable is gone": func(b *servicetest.Service) *servicetest.Service { clear(b.Store.Items); return b },
		"the next leader never saw it": func(b *servicetest.Service) *servicetest.Service {
			next := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
			next.Clock.At = b.Clock.At
			next.State.Heard()
			return next
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
			first, second := servicetest.Ask("first", "1", 1), servicetest.Ask("second", "8G", 1)
			b.Submit(t, first)
			b.Register(first)
			b.Run(first, "alloc", "a", 0, 0, 16)
			d := b.Submit(t, second)
			if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
				t.Fatalf("got %+v", d)
			}
			b.Register(second)
			b.LetTimePass()
			b.End("alloc")
			b = lose(b)
			second = b.RegisterAs(second, servicetest.WasOf(d))
			b.Block(second, 1)
			b.LetTimePass()
			due := b.Next(nil, true)
			if due == nil {
				t.Fatal("it waits for ever")
			}
			again, err := b.Revise(t.Context(), []admit.Ask{second}, due.Revision)
			if err != nil || again == nil || again[0].Hold != nil {
				t.Fatalf("got %+v, %v", again, err)
			}
			if len(b.Store.Items) == 0 {
				t.Error("nothing is recorded")
			}
		})
	}
}

// Device blocks that run are kept when their record is lost: others would replace
// every alloc.
func TestALostRecordRestartsNothing(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 2))
	a := servicetest.Ask("job", "0.5", 1)
	a.Tasks[0].Driver = "raw_exec"
	d := b.Submit(t, a)
	d.Tasks[0].Devices[0].Count = 9 // as an earlier release would have decided
	next := servicetest.New(t, "", servicetest.Machine("a", 2))
	next.RegisterAs(a, servicetest.WasOf(d))
	next.Run(a, "alloc", "a", 0, 0, 9)
	if again := next.Submit(t, a); again.Tasks[0].Devices[0].Count != 9 {
		t.Errorf("the running alloc would be replaced: %+v", again.Tasks[0].Devices)
	}
}

// A mark is a public word: a job is not known by it.
func TestAForgedMarkAdmitsNothing(t *testing.T) {
	b := servicetest.New(t, "preemption {\n hold_direct_jobs = true\n}\n"+servicetest.OneGPU, servicetest.Machine("a", 2))
	forged := around(b, "forged", 50, 16)
	forged = b.RegisterAs(forged, &admit.Earlier{Tasks: []admit.TaskDecision{{Task: "t"}}})
	other := around(b, "other", 60, 16)
	b.Run(forged, "alloc-forged", "a", 0, 0, 16)
	b.Run(other, "alloc-other", "a", 1, 0, 16)
	due := b.Next(nil, true)
	if due == nil || due.Job.ID != "forged" || due.Revision.Hold == nil {
		t.Fatalf("due is %+v", due)
	}
}

// child shows a child of a job that was admitted, with the parent's decision in it.
func child(b *servicetest.Service, parent admit.Ask, id string, d admit.Decision) admit.Ask {
	a := parent
	a.JobID, a.Later = id, false
	a = b.RegisterAs(a, servicetest.WasOf(d))
	j := b.Job(nomad.JobKey{Namespace: a.Namespace, ID: id})
	b.Index++
	j.Index, j.Parent = b.Index, parent.JobID
	j.Groups[0].Inherited = a.Inherited(parent.JobID)
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
	return a
}

// Children of periodic and parameterized jobs have no record of their own.
func TestAChildIsTreatedLikeAnyJob(t *testing.T) {
	later := func(job, request string, priority int) admit.Ask {
		a := servicetest.Ask(job, request, 1)
		a.JobType, a.Later, a.Priority = "batch", true, priority
		return a
	}
	t.Run("it evicts as its priority may", func(t *testing.T) {
		b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 1))
		low := servicetest.Ask("low", "1", 1)
		low.Priority = 20
		b.Submit(t, low)
		b.Register(low)
		b.Run(low, "alloc-low", "a", 0, 0, 16)
		parent := later("parent", "1", 90)
		d := b.Submit(t, parent)
		b.Register(parent)
		c := child(b, parent, "parent/dispatch-1", d)
		b.Block(c, 1)
		b.LetTimePass()
		if aligned(b, t, c); isDirect(b, nomad.JobKey{Namespace: "default", ID: c.JobID}) {
			t.Error("it counts as submitted around the service")
		}
		b.Register(c)
		changed(b, c, func(j *nomad.Job) { j.Parent = parent.JobID })
		b.LetTimePass()
		due := b.Next(nil, true)
		if due == nil || due.Evict == nil || due.Evict.Victims[0].AllocID != "alloc-low" {
			t.Errorf("due is %+v", due)
		}
	})
	t.Run("its queue's limit binds it", func(t *testing.T) {
		b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
		parent := later("parent", "1", 50)
		d := b.Submit(t, parent)
		b.Register(parent)
		for i, id := range []string{"parent/periodic-1", "parent/periodic-2"} {
			c := child(b, parent, id, d)
			b.Run(c, "alloc-"+id, "a", i, 0, 16)
			if isDirect(b, nomad.JobKey{Namespace: "default", ID: id}) {
				t.Error("it counts as submitted around the service")
			}
			b.Clock.At = b.Clock.At.Add(time.Second)
		}
		b.LetTimePass()
		due := b.Next(nil, true)
		if due == nil || due.Job.ID != "parent/periodic-2" || due.Revision.Hold == nil {
			t.Errorf("due is %+v", due)
		}
	})
}

// Growth that was not decided about is charged like anything else: within the limit
// it is adopted, above it the group goes back to waiting.
func TestGrowthAroundTheServiceIsBroughtBack(t *testing.T) {
	for name, row := range map[string]struct {
		slices int
		held   bool
	}{"within the limit": {8, false}, "above it": {16, true}} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("job", fmt.Sprintf("%dG", row.slices), 1)
			d := b.Submit(t, a)
			b.Register(a)
			b.Run(a, "alloc-0", "a", 0, 0, row.slices)
			b.LetTimePass()
			if due := b.Next(nil, true); due != nil {
				t.Fatalf("nothing is different, and yet %+v", due)
			}
			a.Count = 2
			a = b.RegisterAs(a, servicetest.WasOf(d))
			b.Run(a, "alloc-1", "a", 1, 0, row.slices)
			due := b.Next(nil, true)
			if due == nil || (due.Revision.Hold != nil) != row.held || due.Revision.Align == row.held {
				t.Fatalf("due is %+v", due)
			}
			if row.held {
				return
			}
			if changed, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision); err != nil || changed != nil {
				t.Errorf("got %+v, %v", changed, err)
			}
			if due := b.Next(nil, true); due != nil {
				t.Errorf("it is adopted, and yet %+v", due)
			}
		})
	}
}

func isDirect(s *servicetest.Service, key nomad.JobKey) (direct bool) {
	s.State.View(func(r *state.Reader) { direct = r.Queue.Direct(key) })
	return direct
}

// In a queue above its limit, a job that is registered otherwise than it was decided about is decided
// about anew while nothing of it runs; what runs is for the quota to bring back.
func TestWhatWaitsIsAlignedAlsoAboveALimit(t *testing.T) {
	for name, runs := range map[string]bool{"nothing of it runs": false, "a part of it runs": true} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 3))
			for i, id := range []string{"one", "two"} {
				b.Run(around(b, id, 50, 16), "alloc-"+id, "a", i, 0, 16)
			}
			a := servicetest.Ask("job", "8G", 2)
			d := b.Submit(t, a)
			if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
				t.Fatalf("got %+v", d)
			}
			was := servicetest.WasOf(d)
			was.Hold = ""
			a = b.RegisterAs(a, was)
			if runs {
				b.Run(a, "alloc", "a", 2, 0, 8)
			}
			b.Block(a, 1)
			b.LetTimePass()
			due := b.Next(nil, true)
			if aligns := due != nil && due.Job.ID == "job" && due.Revision.Align; aligns == runs {
				t.Errorf("due is %+v", due)
			}
		})
	}
}
