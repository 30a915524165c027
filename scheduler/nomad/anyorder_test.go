// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// world is what a Nomad has at an index: of each thing its own index.
type world struct {
	nodes  map[string]uint64
	jobs   map[JobKey]uint64
	allocs map[string]*Alloc
	evals  map[string]*eventEval
}

func (w world) clone() world {
	return world{maps.Clone(w.nodes), maps.Clone(w.jobs), maps.Clone(w.allocs), maps.Clone(w.evals)}
}

func (w world) String() string {
	text := fmt.Sprint(w.nodes, w.jobs)
	for _, id := range slices.Sorted(maps.Keys(w.allocs)) {
		text += fmt.Sprintf(" %s:%d", id, w.allocs[id].Index)
	}
	for _, id := range slices.Sorted(maps.Keys(w.evals)) {
		text += fmt.Sprintf(" %s:%d", id, w.evals[id].ModifyIndex)
	}
	return text
}

// step changes one thing, and returns what is told of it.
func (w world) step(r *rand.Rand, index uint64) event {
	n := r.IntN(4)
	id := fmt.Sprint(n)
	key := JobKey{"ns", id}
	e := event{Index: index, Key: id, Namespace: "ns"}
	say := func(format string, args ...any) { e.Payload = json.RawMessage(fmt.Sprintf(format, args...)) }
	switch r.IntN(8) {
	case 0, 1:
		w.nodes[id], e.Topic = index, "Node"
		say(`{"Node":{"ID":%q,"ModifyIndex":%d}}`, id, index)
	case 2:
		delete(w.nodes, id)
		e.Topic, e.Type = "Node", "NodeDeregistration"
		say(`{}`)
	case 3:
		w.jobs[key], e.Topic = index, "Job"
		say(`{"Job":{"ID":%q,"Namespace":"ns","JobModifyIndex":%d}}`, id, index)
	case 4: // with all that is of it
		delete(w.jobs, key)
		maps.DeleteFunc(w.allocs, func(_ string, a *Alloc) bool { return a.Job == id })
		maps.DeleteFunc(w.evals, func(_ string, e *eventEval) bool { return e.JobID == id })
		e.Topic = "Job"
		say(`{"Job":{"ID":%q,"Namespace":"ns","JobModifyIndex":%d},"Deleted":true}`, id, index)
	case 5, 6: // of a job that there is
		if w.jobs[key] == 0 {
			return w.step(r, index)
		}
		alloc, status := fmt.Sprint("a", r.IntN(6)), "running"
		if known := w.allocs[alloc]; known != nil {
			id = known.Job
		}
		if w.allocs[alloc] = (&Alloc{ID: alloc, Namespace: "ns", Job: id, Index: index, Status: status}); r.IntN(3) == 0 {
			status = "complete"
			delete(w.allocs, alloc)
		}
		e.Topic, e.Key = "Allocation", alloc
		say(`{"Allocation":{"ID":%q,"Namespace":"ns","JobID":%q,"ClientStatus":%q,"DesiredStatus":"run","ModifyIndex":%d}}`, alloc, id, status, index)
	case 7:
		if w.jobs[key] == 0 {
			return w.step(r, index)
		}
		eval, status := "e"+id, "blocked"
		if w.evals[eval] = (&eventEval{ID: eval, Namespace: "ns", JobID: id, Status: status, ModifyIndex: index}); r.IntN(2) == 0 {
			status = "complete"
			delete(w.evals, eval)
		}
		e.Topic, e.Key = "Evaluation", eval
		say(`{"Evaluation":{"ID":%q,"Namespace":"ns","JobID":%q,"Status":%q,"ModifyIndex":%d}}`, eval, id, status, index)
	}
	return e
}

// TestListsAndEventsInAnyOrder has a Nomad that changes while its lists are read, page by page and one thing
// after the other, and pages that come before or after the events of what they have or have not yet.
// In the end the mirror, and whoever was told of its changes, has what Nomad has.
func TestListsAndEventsInAnyOrder(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := world{map[string]uint64{}, map[JobKey]uint64{}, map[string]*Alloc{}, map[string]*eventEval{}}
		past := []world{w.clone()}
		var events []event
		more := func(n int) {
			for range n {
				events = append(events, w.step(r, uint64(len(past))))
				past = append(past, w.clone())
			}
		}
		m, told := NewMirror(Hardware{}), world{map[string]uint64{}, map[JobKey]uint64{}, map[string]*Alloc{}, map[string]*eventEval{}}
		apply := func(changes []Change) { told.apply(changes) }
		more(r.IntN(30))
		heard := r.IntN(len(events) + 1) // a stream begins with what it still has
		hear := func(n int) {
			for ; n > 0 && heard < len(events); n, heard = n-1, heard+1 {
				changes, err := m.event(events[heard])
				if err != nil {
					t.Fatal(err)
				}
				apply(changes)
			}
		}
		for range 1 + r.IntN(3) {
			more(r.IntN(10))
			m.begin()
			at, pages, rest := readSo(r, func() world { more(r.IntN(4)); return past[len(past)-1] }, func() uint64 { return uint64(len(past) - 1) })
			for _, p := range pages {
				hear(r.IntN(6))
				apply(p(m))
			}
			hear(r.IntN(6))
			for _, p := range rest {
				apply(p(m))
			}
			m.at = at
			m.end()
			more(r.IntN(10))
			hear(r.IntN(20))
		}
		hear(len(events))
		if !maps.Equal(told.nodes, w.nodes) || !maps.Equal(told.jobs, w.jobs) || !sameKeys(told.allocs, w.allocs) || !sameBlocked(told, w) {
			t.Fatalf("seed %d: told\n%s\nwant\n%s", seed, told, w)
		}
	}
}

// readSo reads the lists in pages of one, each as Nomad is then, and hands over the pages in any order.
func readSo(r *rand.Rand, now func() world, index func() uint64) (at listed, pages, rest []page) {
	kinds := map[string]func() (page, []page){
		"nodes": func() (page, []page) {
			seen, list := map[string]bool{}, []page{}
			at.nodes = index()
			for _, id := range []string{"0", "1", "2", "3"} {
				if have, found := now().nodes[id]; found {
					seen[id] = true
					list = append(list, func(m *Mirror) []Change { return m.listedNode(&Node{Index: have, Plan: place.Node{ID: id}}) })
				}
			}
			return goneNodes(seen, at.nodes), list
		},
		"jobs": func() (page, []page) {
			seen, list := map[JobKey]bool{}, []page{}
			at.jobs = index()
			for _, id := range []string{"0", "1", "2", "3"} {
				key := JobKey{"ns", id}
				if have, found := now().jobs[key]; found {
					seen[key] = true
					list = append(list, func(m *Mirror) []Change { return m.listedJob(&Job{Key: key, Index: have}) })
				}
			}
			return goneJobs(seen, at.jobs), list
		},
		"allocs": func() (page, []page) {
			seen, list := map[string]bool{}, []page{}
			at.allocs = index()
			for i := range 6 {
				if a := now().allocs[fmt.Sprint("a", i)]; a != nil {
					seen[a.ID] = true
					list = append(list, func(m *Mirror) []Change { return m.listedAlloc(a) })
				}
			}
			return goneAllocs(seen, at.allocs), list
		},
		"evals": func() (page, []page) {
			seen, list := map[string]bool{}, []page{}
			at.evals = index()
			for i := range 4 {
				if e := now().evals[fmt.Sprint("e", i)]; e != nil {
					seen[e.ID] = true
					list = append(list, func(m *Mirror) []Change { return m.listedEval(e) })
				}
			}
			return goneEvals(seen, at.evals), list
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		gone, list := kinds[kind]()
		pages, rest = append(pages, list...), append(rest, gone)
	}
	r.Shuffle(len(pages), func(i, k int) { pages[i], pages[k] = pages[k], pages[i] })
	return at, pages, rest
}

// apply takes changes as a sink does.
func (w world) apply(changes []Change) {
	for _, c := range changes {
		switch {
		case c.Node != nil:
			w.nodes[c.Node.Plan.ID] = c.Node.Index
		case c.NodeGone != "":
			delete(w.nodes, c.NodeGone)
		case c.Job != nil:
			w.jobs[c.Job.Key] = c.Job.Index
		case c.JobGone != nil:
			delete(w.jobs, *c.JobGone)
			maps.DeleteFunc(w.allocs, func(_ string, a *Alloc) bool { return a.Key() == *c.JobGone })
			delete(w.evals, "e"+c.JobGone.ID)
		case c.Alloc != nil && c.Alloc.Holds():
			w.allocs[c.Alloc.ID] = c.Alloc
		case c.Alloc != nil:
			delete(w.allocs, c.Alloc.ID)
		case c.AllocGone != "":
			delete(w.allocs, c.AllocGone)
		case c.Blocked != nil:
			w.evals[c.Blocked.EvalID] = &eventEval{ID: c.Blocked.EvalID, ModifyIndex: c.Blocked.Index}
		case c.Unblocked != nil:
			delete(w.evals, "e"+c.Unblocked.ID)
		}
	}
}

func sameKeys(a, b map[string]*Alloc) bool {
	return maps.EqualFunc(a, b, func(x, y *Alloc) bool { return x.Index == y.Index })
}

func sameBlocked(a, b world) bool {
	return maps.EqualFunc(a.evals, b.evals, func(x, y *eventEval) bool { return x.ModifyIndex == y.ModifyIndex })
}
