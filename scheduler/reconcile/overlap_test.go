// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// clockOf shows a periodic job of whole GPUs, and gives what its children bear of its admission.
func clockOf(t *testing.T, b *servicetest.Service, id string, change func(*nomad.Job)) (admit.Ask, admit.Decision) {
	t.Helper()
	a := servicetest.Ask(id, "1", 1)
	a.JobType, a.Later, a.ByClock = "batch", true, true
	d := b.Submit(t, a)
	b.Register(a)
	changed(b, a, func(j *nomad.Job) {
		j.Periodic, j.Overlaps, j.Stopped = true, true, true
		if change != nil {
			change(j)
		}
	})
	return a, d
}

// Where a hundred children of a periodic job that is held wait, Nomad starts no further one: of that
// job, whatever else waits, and while it does not rest.
func TestHowManyChildrenMayWait(t *testing.T) {
	for name, row := range map[string]struct {
		children, others int // that wait: of the job, and of another one
		change           func(*nomad.Job)
		free, skip       bool
		due              bool
	}{
		"a hundred":               {children: 100, due: true},
		"one fewer":               {children: 99},
		"one fewer, and others":   {children: 99, others: 60},
		"others as well":          {children: 100, others: 99, due: true},
		"it prohibits overlap":    {children: 100, change: func(j *nomad.Job) { j.Overlaps = false }},
		"the clock starts none":   {children: 100, change: func(j *nomad.Job) { j.Periodic = false }},
		"it was not admitted":     {children: 100, change: func(j *nomad.Job) { j.Groups[0].Was = nil }},
		"it is not held":          {children: 100, free: true},
		"it rests":                {children: 100, skip: true},
		"one of its groups waits": {children: 100, change: func(j *nomad.Job) { j.Groups = append([]nomad.Group{{Name: "cpu"}}, j.Groups...) }, due: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
			if !row.free {
				b.Tenant(t, "tenant", 50, "a", 0, 0, 16)
			}
			a, d := clockOf(t, b, "clock", row.change)
			if (d.Hold == nil) != row.free {
				t.Fatalf("got %+v", d)
			}
			for i := range row.children {
				b.Block(child(b, a, fmt.Sprintf("clock/periodic-%03d", i), d), 1)
			}
			other, d := clockOf(t, b, "other", nil)
			for i := range row.others {
				b.Block(child(b, other, fmt.Sprintf("other/periodic-%03d", i), d), 1)
			}
			b.Pass(time.Second)
			item := b.Next(map[string]bool{"default/clock": row.skip}, true)
			if due := item != nil && item.NoOverlap; due != row.due || due && (item.Job.ID != "clock" || item.Evict == nil || len(item.Evict.Victims) > 0) {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// What Nomad started within a minute has further children of its periodic job wait, also where its queue
// is above its limit only until something has stopped.
func TestWhoseFurtherChildrenWait(t *testing.T) {
	const nested = "queue \"org\" {\n gpus = 1\n borrow = false\n}\nqueue \"q\" {\n parent = \"org\"\n gpus = 1\n namespaces = [\"default\"]\n}\n"
	for name, row := range map[string]struct {
		config string
		change func(*nomad.Job)                          // of the periodic job
		then   func(b *servicetest.Service, a admit.Ask) // to its child that runs
		wait   time.Duration
		skip   bool
		due    bool
	}{
		"a moment ago":            {due: true},
		"just within a minute":    {wait: time.Minute - time.Second, due: true},
		"a minute ago":            {wait: time.Minute},
		"in a queue of another":   {config: nested, due: true},
		"it rests":                {skip: true},
		"it is about to end":      {then: func(b *servicetest.Service, _ admit.Ask) { b.Stop("new") }},
		"in the place of another": {then: func(b *servicetest.Service, a admit.Ask) { b.Run(a, "moved", "a", 2, 0, 0); b.Stop("moved") }},
		"beside one of a group of its own": {then: func(b *servicetest.Service, a admit.Ask) {
			a.Group = "h"
			b.Run(a, "moved", "a", 2, 0, 0)
			b.Stop("moved")
		}, due: true},
		"the clock starts none":  {change: func(j *nomad.Job) { j.Periodic = false }},
		"it is held already":     {change: func(j *nomad.Job) { j.Groups[0].Was = &admit.Earlier{Hold: "quota: full"} }},
		"it was never admitted":  {change: func(j *nomad.Job) { j.Groups[0].Was = nil }, due: true},
		"its groups have no GPU": {change: func(j *nomad.Job) { j.Groups = []nomad.Group{{Name: "g"}} }},
		"its second group has": {change: func(j *nomad.Job) {
			j.Groups = append([]nomad.Group{{Name: "cpu"}}, j.Groups...)
		}, due: true},
		"in a queue of their own": {config: servicetest.OneGPU + "queue \"r\" {\n gpus = 1\n allow_namespaces = [\"default\"]\n}\n", change: func(j *nomad.Job) { j.Groups[0].Queue = "r" }},
	} {
		t.Run(name, func(t *testing.T) {
			if row.config == "" {
				row.config = servicetest.OneGPU
			}
			b := servicetest.New(t, row.config, servicetest.Machine("a", 3))
			a, d := clockOf(t, b, "clock", row.change)
			b.Tenant(t, "tenant", 50, "a", 0, 0, 16)
			b.Stop("alloc-tenant")
			c := child(b, a, "clock/periodic-1", d)
			b.Run(c, "new", "a", 1, 0, 16)
			if row.then != nil {
				row.then(b, c)
			}
			b.Pass(row.wait)
			item := b.Next(map[string]bool{"default/clock": row.skip}, false)
			if due := item != nil && item.Job.ID == "clock" && item.Revision.Hold != nil && item.Revision.Group == "g"; due != row.due {
				t.Errorf("due is %+v", item)
			}
		})
	}
}
