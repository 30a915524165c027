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
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// byClock shows a periodic job of one GPU that was admitted.
func byClock(t *testing.T, b *servicetest.Service, id string) (admit.Ask, admit.Decision) {
	t.Helper()
	a := servicetest.Ask(id, "1", 1)
	a.JobType, a.Later, a.ByClock = "batch", true, true
	d := b.Submit(t, a)
	show(b, a)
	return a, d
}

// show shows a periodic job as it was recorded.
func show(b *servicetest.Service, a admit.Ask) {
	b.Register(a)
	j := b.Job(servicetest.KeyOf(a))
	b.Index++
	j.Index, j.Periodic, j.Stopped = b.Index, true, true
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
}

// started shows a child that runs on a GPU.
func started(b *servicetest.Service, parent admit.Ask, d admit.Decision, id string, index int) admit.Ask {
	c := child(b, parent, id, d)
	b.Run(c, "alloc-"+id, "a", index, 0, 16)
	b.Pass(time.Second)
	return c
}

// The first child that is too much has its parent wait, before it is brought back itself: all later
// ones are born with that hold. So does one that is too much only until another one has stopped,
// since nothing else would ever take it back.
func TestTheParentOfWhatIsTooMuchWaits(t *testing.T) {
	const dry = "preemption {\n dry_run = true\n}\n"
	for name, row := range map[string]struct {
		config string
		then   func(b *servicetest.Service, parent admit.Ask, d admit.Decision)
		skip   string
		parent bool // it is held
		child  bool // the second one is
	}{
		"two of one":         {config: servicetest.OneGPU, parent: true},
		"one of two stops":   {config: servicetest.OneGPU, then: func(b *servicetest.Service, _ admit.Ask, _ admit.Decision) { b.Stop("alloc-p/periodic-1") }, parent: true},
		"the last one stops": {config: servicetest.OneGPU, then: func(b *servicetest.Service, _ admit.Ask, _ admit.Decision) { b.Stop("alloc-p/periodic-2") }, parent: true},
		"both stop": {config: servicetest.OneGPU, then: func(b *servicetest.Service, _ admit.Ask, _ admit.Decision) {
			b.Stop("alloc-p/periodic-1")
			b.Stop("alloc-p/periodic-2")
		}},
		"it could not be held":      {config: servicetest.OneGPU, skip: "default/p", child: true},
		"both fit":                  {config: strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = 2", 1)},
		"the queue has no limit":    {config: strings.Replace(servicetest.OneGPU, "borrow = false", "borrow = true", 1)},
		"there is no queue":         {},
		"it is the queue of others": {config: strings.Replace(servicetest.OneGPU, `["default"]`, `["other"]`, 1)},
		"only told":                 {config: dry + servicetest.OneGPU, parent: true},
		"it is not periodic": {config: servicetest.OneGPU, then: func(b *servicetest.Service, parent admit.Ask, _ admit.Decision) {
			b.Register(parent)
		}, child: true},
		"it is held already": {config: servicetest.OneGPU, then: func(b *servicetest.Service, parent admit.Ask, d admit.Decision) {
			d.Hold = &admit.Hold{Kind: view.WaitsForQuota, Sentence: "x"}
			b.RegisterAs(parent, servicetest.WasOf(d))
			j := b.Job(servicetest.KeyOf(parent))
			b.Index++
			j.Index, j.Periodic = b.Index, true
			b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
		}, child: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, servicetest.Machine("a", 3))
			parent, d := byClock(t, b, "p")
			started(b, parent, d, "p/periodic-1", 0)
			started(b, parent, d, "p/periodic-2", 1)
			if row.then != nil {
				row.then(b, parent, d)
			}
			b.LetTimePass()
			due := b.Next(map[string]bool{row.skip: true}, true)
			switch {
			case !row.parent && !row.child:
				if due != nil {
					t.Errorf("due is %+v", due)
				}
			case due == nil || due.Revision.Hold == nil || due.Revision.Hold.Kind != view.WaitsForQuota || due.Evict == nil:
				t.Errorf("due is %+v", due)
			case row.parent && (due.Job.ID != "p" || len(due.Evict.Victims) > 0 || !strings.Contains(due.Revision.Hold.Sentence, "until the job is registered anew")):
				t.Errorf("due is %+v", due)
			case row.child && (due.Job.ID != "p/periodic-2" || len(due.Evict.Victims) != 1):
				t.Errorf("due is %+v", due)
			}
		})
	}
}

// What Nomad starts in place of a child's alloc that it moves is no child more.
func TestAChildThatMovesHoldsNoParent(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 3))
	parent, d := byClock(t, b, "p")
	c := started(b, parent, d, "p/periodic-1", 0)
	b.Stop("alloc-p/periodic-1")
	b.Run(c, "another", "a", 1, 0, 16)
	b.LetTimePass()
	if due := b.Next(nil, true); due != nil {
		t.Errorf("due is %+v", due)
	}
}

// A parent is held once: while the news of it is on its way, it is the turn of what is too much.
// What started before does not count as submitted around the service, and what is born with the
// hold is let go when there is quota.
func TestAParentIsHeldOnce(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 3))
	parent, d := byClock(t, b, "p")
	started(b, parent, d, "p/periodic-1", 0)
	second := started(b, parent, d, "p/periodic-2", 1)
	due := b.Next(nil, true)
	if due == nil || due.Job.ID != "p" {
		t.Fatalf("due is %+v", due)
	}
	held, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(parent, d)}, due.Revision)
	if err != nil || held == nil || held[0].Hold == nil || held[0].Candidates != nil {
		t.Fatalf("got %+v, %v", held, err)
	}
	if shown := b.Cluster(t).Decisions; shown[0].JobID != "p" || shown[0].Outcome != view.Held || !strings.Contains(shown[0].Summary, "a child of it took queue q above its limit") {
		t.Errorf("people see %+v", shown)
	}
	if due := b.Next(nil, true); due == nil || due.Job.ID != "p/periodic-2" {
		t.Errorf("before the news of it, due is %+v", due)
	}
	show(b, parent)
	for _, id := range []string{"p/periodic-1", "p/periodic-2"} {
		if isDirect(b, nomad.JobKey{Namespace: "default", ID: id}) {
			t.Errorf("%s counts as submitted around the service", id)
		}
	}
	b.End("alloc-" + second.JobID)
	third := child(b, parent, "p/periodic-3", held[0])
	b.Block(third, 1)
	b.LetTimePass()
	if aligned(b, t, third); b.Record(servicetest.KeyOf(third)).Groups["g"].Decision.Hold == nil || isDirect(b, servicetest.KeyOf(third)) {
		t.Errorf("there is no quota, and it does not wait: %+v", b.Record(servicetest.KeyOf(third)))
	}
	b.Register(third)
	b.End("alloc-p/periodic-1")
	b.LetTimePass()
	if due := b.Next(nil, true); due == nil || due.Job.ID != "p/periodic-3" || !due.Revision.Retry {
		t.Errorf("there is quota, and due is %+v", due)
	}
}

// Children that wait and that nothing is recorded of yet keep nothing else from being done, however
// many of them Nomad starts.
func TestWhatDriftsKeepsNothingElseFromBeingDone(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}\n", servicetest.Machine("a", 1))
	parent, d := byClock(t, b, "p")
	for i := range 40 {
		b.Block(child(b, parent, fmt.Sprintf("p/periodic-%d", i), d), 1)
	}
	b.Tenant(t, "low", 20, "a", 0, 0, 16)
	b.Waits(t, "high", "1", 80)
	b.LetTimePass()
	skip, aligned := map[string]bool{}, 0
	for range 60 {
		due := b.Next(skip, true)
		if due == nil {
			break
		}
		skip[due.Job.String()] = true
		if due.Revision.Align {
			aligned++
		}
		if due.Job.ID == "high" && due.Evict != nil {
			if aligned > 15 {
				t.Errorf("%d were looked at before", aligned)
			}
			aligned -= 1000
		}
	}
	if aligned != 40-1000 {
		t.Errorf("%d were looked at", aligned)
	}
}
