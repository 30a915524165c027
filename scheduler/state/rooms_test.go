// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// sliceNeed is what an alloc with so many slices of a GPU needs.
func sliceNeed(count int64) *state.Need {
	return &state.Need{Alloc: place.Blocks{CPUMHz: 100, MemoryMiB: 100, Devices: []place.Block{{Device: "nvidia/slice", Count: count}}}}
}

// fitOf is how well a node fits, found without memory.
func fitOf(tx *state.Tx, node string, need *state.Need) state.Fit {
	n := tx.Cluster.Node(node)
	switch {
	case n == nil || !need.Node.AdmittedBy(&n.Plan) || !tx.Capacity.Serves(node, need, place.Everything):
		return state.FitsNever
	case tx.Capacity.ServesNow(node, need, nil):
		return state.FitsNow
	case n.Plan.Ineligible:
		return state.FitsWhenBack
	}
	return state.FitsLater
}

// leastOf is how much has to go on a node for a group that waits; -1 where that does
// not help.
func leastOf(tx *state.Tx, node string, need *state.Need, priority int, own nomad.JobKey) int64 {
	leaves := state.Leaves(tx.Config(), priority, own)
	if !tx.Capacity.ServesNow(node, need, leaves) {
		return -1
	}
	sum := int64(0)
	for _, u := range tx.Capacity.UsagesOn(node) {
		if leaves(&u) {
			sum += max(1, tx.Capacity.Charge(node, u.Takes).Milli)
		}
	}
	return sum
}

// scene is a cluster to which anything may happen.
type scene struct {
	*servicetest.Service
	t        *testing.T
	rng      *rand.Rand
	machines []string
	running  []string
}

func newScene(t *testing.T, seed uint64) *scene {
	s := &scene{t: t, rng: rand.New(rand.NewPCG(seed, 0)), machines: []string{"a", "b", "c", "d", "e"}}
	var nodes []*nomad.Node
	for _, m := range s.machines[:4] {
		nodes = append(nodes, servicetest.Machine(m, 2))
	}
	s.Service = servicetest.New(t, servicetest.Quick, nodes...)
	return s
}

// step lets one thing happen.
func (s *scene) step(n int) {
	id := fmt.Sprintf("job-%d", n)
	switch what := s.rng.IntN(8); {
	case what < 2:
		a := servicetest.Ask(id, []string{"1G", "8G", "1"}[s.rng.IntN(3)], 1)
		a.Priority = 20 * (1 + s.rng.IntN(4))
		if s.rng.IntN(3) == 0 {
			a.JobType = "batch"
		}
		if _, err := s.Decide(s.t.Context(), []admit.Ask{a}, false); err != nil {
			return // no node is left that could ever hold it
		}
		s.Register(a)
		s.Run(a, "alloc-"+id, s.machines[s.rng.IntN(4)], s.rng.IntN(2), s.rng.IntN(8), 1+s.rng.IntN(8))
		s.running = append(s.running, "alloc-"+id)
	case what == 2:
		_, _ = s.Decide(s.t.Context(), []admit.Ask{servicetest.Ask(id, "8G", 1)}, false) // assumed
	case what == 3 && len(s.running) > 0:
		s.End(s.running[0])
		s.running = s.running[1:]
	case what == 4 && len(s.running) > 0:
		s.Stop(s.running[s.rng.IntN(len(s.running))])
	case what == 5:
		n := servicetest.Machine(s.machines[s.rng.IntN(5)], 2)
		n.Plan.Ineligible = s.rng.IntN(2) == 0
		s.Index++
		n.Index = s.Index
		s.State.Apply([]nomad.Change{{Node: n}}, s.Index)
	case what == 6:
		s.Pass(time.Duration(s.rng.IntN(90)) * time.Second)
		s.Expire()
	default:
		s.Index++
		s.State.Apply([]nomad.Change{{NodeGone: "id-" + s.machines[1+s.rng.IntN(4)]}}, s.Index)
	}
}

// TestRoomIsAsOnAFreshLook: whatever happens, what is remembered of nodes is what a look
// at each of them would say.
func TestRoomIsAsOnAFreshLook(t *testing.T) {
	told := map[string]bool{}
	for seed := range uint64(30) {
		s := newScene(t, seed)
		for n := range 60 {
			s.step(n)
			if s.rng.IntN(3) == 0 {
				continue // several changes between two looks
			}
			s.State.Do(func(tx *state.Tx) {
				for _, need := range []*state.Need{sliceNeed(1), sliceNeed(8), sliceNeed(16), sliceNeed(17)} {
					maps.Copy(told, compareRoom(t, tx, s, need))
				}
			})
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, n)
			}
		}
	}
	for _, want := range []string{"now", "later", "back", "never", "several"} {
		if !told[want] {
			t.Errorf("nothing happened that shows %q", want)
		}
	}
}

// compareRoom compares a room with fresh looks, and says what there was to see.
func compareRoom(t *testing.T, tx *state.Tx, s *scene, need *state.Need) map[string]bool {
	t.Helper()
	seen, counts := map[string]bool{}, map[state.Fit]int{}
	room := tx.Capacity.RoomFor(need)
	for _, m := range s.machines {
		want := fitOf(tx, "id-"+m, need)
		if got := room.On("id-" + m); got != want {
			t.Errorf("node %s fits %s %d, want %d", m, need.Alloc.Devices[0].Device, got, want)
		}
		if tx.Cluster.Node("id-"+m) != nil {
			counts[want]++
		}
		seen[map[state.Fit]string{state.FitsNow: "now", state.FitsLater: "later", state.FitsWhenBack: "back", state.FitsNever: "never"}[want]] = true
	}
	for _, how := range []state.Fit{state.FitsNow, state.FitsLater, state.FitsWhenBack} {
		if got := room.Count(how); got != counts[how] {
			t.Errorf("%d nodes fit %d, want %d", got, how, counts[how])
		}
	}
	for _, own := range []nomad.JobKey{{}, {Namespace: "default", ID: "none"}, s.owner()} {
		for _, priority := range []int{30, 90} {
			if left := compareLeast(t, tx, s, need, priority, own); left > 2 {
				seen["several"] = true
			}
		}
	}
	return seen
}

// owner is a job that has an alloc, if there is one.
func (s *scene) owner() (key nomad.JobKey) {
	if len(s.running) == 0 {
		return key
	}
	return nomad.JobKey{Namespace: "default", ID: s.running[len(s.running)-1][len("alloc-"):]}
}

// compareLeast takes one node after the other, the one where the least has to go first,
// and says how many there were.
func compareLeast(t *testing.T, tx *state.Tx, s *scene, need *state.Need, priority int, own nomad.JobKey) int {
	t.Helper()
	room, kept, last := tx.Capacity.RoomFor(need), map[string]bool{}, int64(0)
	for {
		node := room.Least(priority, own, kept)
		if node == "" {
			break
		}
		goes := leastOf(tx, node, need, priority, own)
		if kept[node] || goes < last {
			t.Errorf("priority %d: node %s comes after %v, where %d has to go, and %d there", priority, node, kept, last, goes)
			return 0
		}
		kept[node], last = true, goes
	}
	for _, m := range s.machines {
		if helps := leastOf(tx, "id-"+m, need, priority, own) >= 0; helps != kept["id-"+m] {
			t.Errorf("priority %d: node %s is left out: %v", priority, m, helps)
		}
	}
	return len(kept)
}

// TestRoomExceptForSome: nodes that are left out do not count as room.
func TestRoomExceptForSome(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	for _, row := range []struct {
		except []string
		want   bool
	}{
		{nil, true}, {[]string{"id-a"}, true}, {[]string{"id-a", "id-x"}, true}, {[]string{"id-a", "id-b"}, false},
	} {
		except := map[string]string{}
		for _, id := range row.except {
			except[id] = "default/other"
		}
		s.State.Do(func(tx *state.Tx) {
			if got := tx.Capacity.RoomFor(sliceNeed(16)).AnyNow(except); got != row.want {
				t.Errorf("room except on %v: %v, want %v", row.except, got, row.want)
			}
			if tx.Capacity.RoomFor(sliceNeed(17)).AnyNow(except) {
				t.Error("room for more than a GPU has")
			}
		})
	}
}

// TestRoomOfAnotherConfiguration: what may be evicted is decided by the configuration of
// now.
func TestRoomOfAnotherConfiguration(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	s.Tenant(t, "low", 10, "a", 0, 0, 16)
	least := func() (node string) {
		s.State.Do(func(tx *state.Tx) { node = tx.Capacity.RoomFor(sliceNeed(16)).Least(50, nomad.JobKey{}, nil) })
		return node
	}
	if node := least(); node != "id-a" {
		t.Errorf("room is made on %q", node)
	}
	c, err := config.Parse("test.hcl", []byte("preemption {\n enabled = false\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Configure(c)
	if node := least(); node != "" {
		t.Errorf("room is made on %q without evictions", node)
	}
}

// TestDatacentersAreThoseOfNodes: a datacenter goes with its last node.
func TestDatacentersAreThoseOfNodes(t *testing.T) {
	in := func(name, dc string) *nomad.Node {
		n := servicetest.Machine(name, 1)
		n.Plan.Datacenter = dc
		return n
	}
	s := servicetest.New(t, "", in("a", "x"), in("b", "x"), in("c", "y"))
	check := func(want ...string) {
		t.Helper()
		s.State.View(func(r *state.Reader) {
			if got := r.Cluster.Datacenters(); !slices.Equal(got, want) {
				t.Errorf("datacenters %v, want %v", got, want)
			}
		})
	}
	check("x", "y")
	s.State.Apply([]nomad.Change{{NodeGone: "id-a"}}, 20)
	check("x", "y")
	s.State.Apply([]nomad.Change{{Node: in("b", "z")}}, 21)
	check("y", "z")
	s.State.Apply([]nomad.Change{{NodeGone: "id-c"}}, 22)
	check("z")
}

// TestRoomAfterMoreChangesThanAreKept: whoever looked too long ago looks at all nodes
// again.
func TestRoomAfterMoreChangesThanAreKept(t *testing.T) {
	a, b := servicetest.Machine("a", 1), servicetest.Machine("b", 1)
	s := servicetest.New(t, "", a, b)
	on := func() (fit state.Fit) {
		s.State.Do(func(tx *state.Tx) { fit = tx.Capacity.RoomFor(sliceNeed(1)).On("id-a") })
		return fit
	}
	if fit := on(); fit != state.FitsNow {
		t.Fatalf("an empty node fits %d", fit)
	}
	gone := *a
	gone.Plan.Ineligible = true
	s.State.Apply([]nomad.Change{{Node: &gone}}, 2)
	for range 10_000 {
		s.State.Apply([]nomad.Change{{Node: b}}, 3)
	}
	if fit := on(); fit != state.FitsWhenBack {
		t.Errorf("a node that takes no work fits %d", fit)
	}
}
