// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// A system job starts on nodes that join. What its queue cannot pay for is stopped
// within seconds, and starts when the queue can.
func TestASystemJobThatGrowsIsHeldToItsQuota(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
	a := servicetest.Ask("agent", "8G", 1)
	a.JobType = "system"
	d := b.Submit(t, a)
	b.Register(a)
	for i, name := range []string{"a", "b", "c"} { // Nomad starts it wherever a node joins
		if i > 0 {
			b.State.Apply([]nomad.Change{{Node: servicetest.Machine(name, 1)}}, b.Index)
		}
		b.LetTimePass()
		if item := b.Next(nil, true); item != nil {
			t.Fatalf("%d GPUs of at most 1, and yet %+v", i/2, item)
		}
		b.Run(a, "alloc-"+name, name, 0, 0, 8)
	}
	if item := b.Next(nil, false); item != nil {
		t.Errorf("nothing may be stopped, and yet %+v", item)
	}
	item := b.Next(nil, true)
	if item == nil || item.Evict == nil || len(item.Evict.Victims) != 1 || item.Evict.Victims[0].AllocID != "alloc-c" || !strings.Contains(item.Evict.Text, "must leave node c: queue q holds 1.5 of at most 1 GPUs") {
		t.Fatalf("got %+v", item)
	}
	held, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, item.Revision)
	if err != nil || held == nil || held[0].Hold != nil || !slices.Equal(held[0].Candidates, []string{"id-a", "id-b"}) {
		t.Fatalf("got %+v, %v", held, err)
	}
	b.Settle(t.Context(), []admit.Ask{a}, held, true)
	b.Register(a)
	b.LetTimePass()
	if item := b.Next(nil, true); item != nil {
		t.Errorf("it is about to go, and yet %+v", item)
	}
	b.End("alloc-c")
	if again := b.Submit(t, a); !reflect.DeepEqual(again.Candidates, held[0].Candidates) {
		t.Errorf("submitted again it goes to %v", again.Candidates)
	}
	b.LetTimePass()
	if item := b.Next(nil, true); item != nil {
		t.Errorf("the queue cannot pay for more, and yet %+v", item)
	}
	for _, row := range []struct {
		gpus string
		want []string
	}{{"1.6", nil}, {"1.5", nil}, {"1.4", []string{"id-a", "id-b"}}} {
		c, err := config.Parse("test.hcl", []byte(strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = "+row.gpus, 1)))
		if err != nil {
			t.Fatal(err)
		}
		b.Configure(c)
		item := b.Next(nil, true)
		if (item != nil) != (row.want == nil) {
			t.Errorf("with %s GPUs: %+v", row.gpus, item)
		}
		if item != nil && (!item.Revision.Everywhere || item.Evict != nil) {
			t.Errorf("with %s GPUs: %+v", row.gpus, item.Revision)
		}
	}
}

// It gets back one node at a time, and none while other work of its queue waits.
func TestASystemJobGrowsWithItsQuota(t *testing.T) {
	machines := []*nomad.Node{servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1)}
	b := servicetest.New(t, strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = 1.5", 1), machines...)
	a := servicetest.Ask("agent", "8G", 1)
	a.JobType = "system"
	d := b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc-a", "a", 0, 0, 8)
	c, err := config.Parse("test.hcl", []byte(strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = 0.25", 1)))
	if err != nil {
		t.Fatal(err)
	}
	b.Configure(c)
	b.LetTimePass()
	item := b.Next(nil, true)
	if item == nil || !slices.Equal(item.Revision.Only, []string{"none"}) {
		t.Fatalf("got %+v", item)
	}
	held, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, item.Revision)
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	b.Settle(t.Context(), []admit.Ask{a}, held, true)
	b.Register(a)
	b.End("alloc-a")
	b.LetTimePass()
	if c, err = config.Parse("test.hcl", []byte(servicetest.OneGPU)); err != nil {
		t.Fatal(err)
	}
	b.Configure(c)
	if item = b.Next(nil, true); item == nil || !slices.Equal(item.Revision.Only, []string{"id-a"}) {
		t.Fatalf("got %+v", item)
	}
	if item := b.Next(map[string]bool{"default/agent": true}, true); item != nil {
		t.Errorf("it rests, and yet %+v", item)
	}
	b.Run(servicetest.Ask("other", "4G", 1), "alloc-other", "b", 0, 0, 4)
	waiting := b.Waits(t, "waiting", "14G", 50)
	b.Pass(time.Minute)
	if item := b.Next(map[string]bool{"default/" + waiting.JobID: true}, false); item != nil {
		t.Errorf("other work waits for the quota, and yet %+v", item)
	}
}
