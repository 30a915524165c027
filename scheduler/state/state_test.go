// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestPlacementsCountUntilNomadShowsThem(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	first := servicetest.Ask("first", "10G", 1)
	if d := b.Submit(t, first); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Fatalf("preferred %v", d.Preferred)
	}
	// Nomad does not show the first job yet, and still its room is gone.
	second := servicetest.Ask("second", "10G", 1)
	if d := b.Submit(t, second); len(d.Preferred) != 0 || d.Hold == nil || d.Hold.Kind != view.WaitsForRoom {
		t.Errorf("the second job was given the same room: %+v", d)
	}
	b.Register(first)
	b.Run(first, "alloc-1", "a", 0, 0, 10)
	if len(b.AllAssumed()) != 0 {
		t.Errorf("%d assumed after the alloc landed", len(b.AllAssumed()))
	}
	if d := b.Submit(t, servicetest.Ask("third", "6G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

func TestPromisesThatNobodyKeepsEnd(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	b.Submit(t, servicetest.Ask("never-arrives", "10G", 1))
	b.Pass(state.Unseen + time.Second)
	b.Expire()
	if d := b.Submit(t, servicetest.Ask("next", "10G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is still gone: %+v", d)
	}
}

// Nomad deletes the allocs of a purged job with it and tells of none, and
// starts others in their room at once. What was decided meanwhile about a job of
// the same name stays.
func TestAPurgedJobTakesItsAllocsAlong(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "10G", 1)
	b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc", "a", 0, 0, 10)
	key := nomad.JobKey{Namespace: "default", ID: "job"}
	b.State.Apply([]nomad.Change{{JobGone: &key}}, b.Index)
	if err := b.Purge(t.Context()); err != nil || len(b.Store.Items) != 1 {
		t.Errorf("a decision of this moment was deleted: %d are left, %v", len(b.Store.Items), err)
	}
	if d := b.Submit(t, servicetest.Ask("next", "16G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is still gone: %+v", d)
	}
	b.Pass(state.Unseen)
	if err := b.Purge(t.Context()); err != nil || len(b.Store.Items) != 1 || b.Record(key) != nil {
		t.Errorf("%d decisions are left, %v", len(b.Store.Items), err)
	}
}

// A node that changes takes its usage with it. Once, releasing the usage
// emptied the very map that was to be booked again, and a full GPU looked
// free after the first measurement.
func TestUsageSurvivesAChangedNode(t *testing.T) {
	b := servicetest.New(t, "placement {\n measured = 0.5\n}", servicetest.Machine("a", 1))
	first := servicetest.Ask("first", "10G", 1)
	b.Submit(t, first)
	b.Register(first)
	b.Run(first, "alloc-1", "a", 0, 0, 10)
	b.Submit(t, servicetest.Ask("in-flight", "2G", 1))
	b.State.Measured("id-a", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-a-0": {Milli: 700, MemoryMiB: 9000}}})
	again := servicetest.Machine("a", 1)
	again.Index++
	b.State.Apply([]nomad.Change{{Node: again}}, 99)
	if d := b.Submit(t, servicetest.Ask("next", "5G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room was given twice: %+v", d)
	}
	if d := b.Submit(t, servicetest.Ask("small", "4G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

// TestTheStateKeepsCount lets jobs come, land, end and nodes change at random, and
// compares the state with what the allocs add up to.
func TestTheStateKeepsCount(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	b := servicetest.New(t, "queue \"q\" {\n gpus = 100\n namespaces = [\"default\"]\n}", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	type running struct {
		id              string
		ask             admit.Ask
		node            string
		gpu, from, size int
	}
	var live []running
	used := map[string]bool{}
	for i := range 2000 {
		switch random.IntN(4) {
		case 0, 1:
			size := 1 + random.IntN(6)
			a := servicetest.Ask(fmt.Sprintf("j%d", i), fmt.Sprintf("%dG", size), 1)
			b.Submit(t, a)
			b.Register(a)
			node, index := []string{"a", "b"}[random.IntN(2)], random.IntN(2)
			for from := 0; from+size <= 16; from++ {
				free := true
				for k := range size {
					free = free && !used[servicetest.Instance(node, index, from+k)]
				}
				if !free {
					continue
				}
				for k := range size {
					used[servicetest.Instance(node, index, from+k)] = true
				}
				r := running{fmt.Sprintf("alloc-%d", i), a, node, index, from, size}
				b.Run(a, r.id, node, index, from, size)
				live = append(live, r)
				break
			}
		case 2:
			if len(live) > 0 {
				k := random.IntN(len(live))
				r := live[k]
				b.End(r.id)
				for s := range r.size {
					delete(used, servicetest.Instance(r.node, r.gpu, r.from+s))
				}
				live = append(live[:k], live[k+1:]...)
			}
		case 3:
			again := servicetest.Machine([]string{"a", "b"}[random.IntN(2)], 2)
			b.State.Apply([]nomad.Change{{Node: again}}, 0)
		}
		if random.IntN(10) == 0 {
			b.Pass(time.Minute)
			b.Expire()
		}
		want := map[string]int64{}
		for _, r := range live {
			want[r.node] += int64(r.size)
		}
		for _, a := range b.AllAssumed() {
			want[strings.TrimPrefix(a.Usage.NodeID, "id-")] += a.Usage.Takes[0].Slices
		}
		var sum place.Charge
		for _, node := range []string{"a", "b"} {
			var got int64
			b.State.View(func(r *state.Reader) {
				for _, u := range r.Capacity.UsagesOn("id-" + node) {
					got += u.Takes[0].Slices
					sum = sum.Plus(r.Capacity.Charge(u.NodeID, u.Takes))
				}
			})
			if got != want[node] {
				t.Fatalf("step %d: node %s holds %d slices in the state, want %d", i, node, got, want[node])
			}
		}
		var got place.Charge
		if b.State.View(func(r *state.Reader) { got, _ = r.Queue.Used("q") }); got != sum {
			t.Fatalf("step %d: the queue is charged %+v, its work costs %+v", i, got, sum)
		}
	}
}

// What is to end is told of until it has, or is gone.
func TestWhatIsToEnd(t *testing.T) {
	for name, over := range map[string]func(s *servicetest.Service){
		"it ended":   func(s *servicetest.Service) { s.End("alloc-tenant") },
		"it is gone": func(s *servicetest.Service) { s.State.Confirm("id-a", nil, s.Index+1) },
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
		stopping := func() int {
			return read(s, func(r *state.Reader) (n int) {
				for range r.Cluster.Stopping() {
					n++
				}
				return n
			})
		}
		if n := stopping(); n != 0 {
			t.Errorf("%s: %d are to end at first", name, n)
		}
		if s.Stop("alloc-tenant"); stopping() != 1 {
			t.Errorf("%s: it is not told that one is to end", name)
		}
		if over(s); stopping() != 0 {
			t.Errorf("%s: it is still to end", name)
		}
	}
}

// What is to end and does not is waited for for half an hour, or as long as its job says and
// five minutes, and never for longer than 35.
func TestWhatIsToEndIsWaitedFor(t *testing.T) {
	for stops, want := range map[time.Duration]time.Duration{
		0: 30 * time.Minute, 25 * time.Minute: 30 * time.Minute, 28 * time.Minute: 33 * time.Minute, 720 * time.Hour: 35 * time.Minute,
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
		j := s.Job(nomad.JobKey{Namespace: "default", ID: "tenant"})
		j.Groups = slices.Clone(j.Groups)
		j.Groups[0].StopTime = stops
		s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
		s.Stop("alloc-tenant")
		waited := func() bool {
			return read(s, func(r *state.Reader) (waited bool) {
				for range r.Cluster.Stopping() {
					waited = true
				}
				return waited
			})
		}
		if s.Pass(want - 1); !waited() {
			t.Errorf("with %s to stop it is not waited for any more before %s", stops, want)
		}
		if s.Pass(1); waited() {
			t.Errorf("with %s to stop it is waited for after %s still", stops, want)
		}
	}
}

// What should not have happened is shown to people.
func TestTroubleIsShown(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.State.Trouble(errors.New("a strange thing"))
	if events := s.Cluster(t).Events; len(events) != 1 || !strings.Contains(events[0].Text, "a strange thing") {
		t.Errorf("events %+v", events)
	}
}
