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

// What has been stopping for a minute is paid for beside what was started in its place: as many of the
// youngest go, of that group alone, and a gang as a whole.
func TestWhatIsStartedBesideWhatLingersGoes(t *testing.T) {
	queue := func(gpus int) string {
		return fmt.Sprintf("queue \"q\" {\n gpus = %d\n borrow = false\n namespaces = [\"default\"]\n}\n", gpus)
	}
	of := servicetest.KeyOf(servicetest.Ask("job", "1", 1))
	for name, row := range map[string]struct {
		config  string
		gang    bool
		started [2]string
		apart   time.Duration // by which one of them is younger
		before  func(b *servicetest.Service)
		wait    time.Duration
		then    func(b *servicetest.Service)
		skip    bool
		goes    string // which allocs
		queue   string
	}{
		"the younger of two":       {apart: time.Second, goes: "new-2"},
		"whatever its name":        {started: [2]string{"z", "a"}, apart: time.Second, goes: "a"},
		"of equals one":            {goes: "new-2"},
		"in either order":          {started: [2]string{"new-2", "new-1"}, goes: "new-2"},
		"a gang":                   {gang: true, apart: time.Second, goes: "new-1 new-2"},
		"as many as linger":        {config: queue(3), before: func(b *servicetest.Service) { run(b, "old-2", 3); b.Stop("old-2") }, goes: "new-1 new-2"},
		"not yet":                  {wait: -time.Second},
		"the queue can pay for it": {config: queue(3)},
		"it rests":                 {skip: true},
		"it cannot be changed":     {then: func(b *servicetest.Service) { change(b, of, func(j *nomad.Job) { j.Dispatched = true }) }},
		"nothing is known of it":   {then: func(b *servicetest.Service) { b.State.Do(func(tx *state.Tx) { tx.ForgetRecord(of) }) }},
		"its news may come": {then: func(b *servicetest.Service) {
			b.State.Do(func(tx *state.Tx) {
				r := tx.Queue.Record(of).Clone()
				r.Settled = tx.Now()
				tx.Keep(r)
			})
		}},
		"it ended in time":      {then: func(b *servicetest.Service) { b.End("old") }},
		"nothing else has":      {then: func(b *servicetest.Service) { b.End("new-1"); b.End("new-2") }},
		"what starts may leave": {then: func(b *servicetest.Service) { b.Stop("new-1"); b.Stop("new-2") }},
		"another job lingers": {config: queue(3), before: func(b *servicetest.Service) {
			b.Run(servicetest.Ask("other", "1", 1), "other", "a", 3, 0, 16)
			b.Stop("other")
		}},
		"another job stops": {config: queue(3), then: func(b *servicetest.Service) {
			b.Run(servicetest.Ask("other", "1", 1), "other", "a", 3, 0, 16)
			b.Stop("other")
		}},
		"a queue above it": {
			config: "queue \"org\" {\n gpus = 2\n borrow = false\n}\nqueue \"q\" {\n parent = \"org\"\n gpus = 2\n max_gpus = 3\n namespaces = [\"default\"]\n}\n",
			apart:  time.Second, goes: "new-2", queue: "org",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if row.config == "" {
				row.config = queue(2)
			}
			if row.started[0] == "" {
				row.started = [2]string{"new-1", "new-2"}
			}
			if row.queue == "" {
				row.queue = "q"
			}
			b := servicetest.New(t, row.config, servicetest.Machine("a", 4))
			a := servicetest.Ask("job", "1", 2)
			a.Gang = row.gang
			if d := b.Submit(t, a); d.Hold != nil {
				t.Fatalf("held: %+v", d.Hold)
			}
			b.Register(a)
			run(b, "old", 0)
			b.LetTimePass()
			b.Stop("old")
			if row.before != nil {
				row.before(b)
			}
			run(b, row.started[0], 1)
			b.Pass(row.apart)
			run(b, row.started[1], 2)
			b.Pass(state.Lingering - row.apart + row.wait)
			if row.then != nil {
				row.then(b)
			}
			item := b.Next(map[string]bool{"default/job": row.skip}, true)
			if row.goes == "" {
				if item != nil && item.Evict != nil {
					t.Errorf("due is %+v, %+v", item, item.Evict)
				}
				return
			}
			if item == nil || item.Evict == nil || item.Revision.Hold == nil || item.Revision.Hold.Kind != view.WaitsForQuota || item.Job != of {
				t.Fatalf("due is %+v", item)
			}
			var goes []string
			for _, v := range item.Evict.Victims {
				goes = append(goes, v.AllocID)
				if v.Queue != row.queue || v.Text != item.Evict.Text || v.Text == "" {
					t.Errorf("%+v", v)
				}
			}
			if got := strings.Join(goes, " "); got != row.goes {
				t.Errorf("%s goes, want %s", got, row.goes)
			}
		})
	}
}

func run(b *servicetest.Service, id string, gpu int) {
	b.Run(servicetest.Ask("job", "1", 2), id, "a", gpu, 0, 16)
}

func change(b *servicetest.Service, of nomad.JobKey, how func(*nomad.Job)) {
	changed(b, admit.Ask{Namespace: of.Namespace, JobID: of.ID}, how)
}
