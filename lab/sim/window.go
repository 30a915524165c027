// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
)

// window is the tasks whose turn is next, each with the node that is kept for it, as in the
// service: where the least has to go. All work of a replay ends by itself.
type window struct {
	l     *live
	names []string // of nodes
	rest  *cluster // with the tasks on it that take no GPU
	free  *cluster // with all tasks on it
	held  []int64  // GPU milli, by node
	on    []map[int]bool
	kept  []keptNode
}

// keptNode is a node that is kept for a task.
type keptNode struct {
	task, node int
	turn       quota.Turn
	request    place.Request
	soonest    *time.Duration // nil: not looked up yet
}

func newWindow(l *live, nodes []Node) *window {
	w := &window{l: l, rest: newCluster(nodes), free: newCluster(nodes), held: make([]int64, len(nodes)), on: make([]map[int]bool, len(nodes))}
	for i := range nodes {
		w.names, w.on[i] = append(w.names, nodes[i].Name), map[int]bool{}
	}
	return w
}

// starts books a task on its node.
func (w *window) starts(i int, s Spot) {
	t := &w.l.tasks[i]
	w.free.nodes[s.Node].book(t, s.GPUs)
	if t.GPUs == 0 {
		w.rest.nodes[s.Node].book(t, nil)
		return
	}
	w.held[s.Node] += max(1, t.Demand())
	w.on[s.Node][i] = true
}

// leaves takes a task off its node.
func (w *window) leaves(i int, s Spot) {
	t := &w.l.tasks[i]
	w.free.nodes[s.Node].free(t, s.GPUs)
	if t.GPUs == 0 {
		w.rest.nodes[s.Node].free(t, nil)
		return
	}
	w.held[s.Node] -= max(1, t.Demand())
	delete(w.on[s.Node], i)
}

// renew keeps a node for each of the first that wait, in their order.
func (w *window) renew(waiting []int, most int) {
	w.kept = w.kept[:0]
	taken := map[int]bool{}
	for _, i := range waiting[:min(most, len(waiting))] {
		if node := w.least(&w.l.tasks[i], taken); node >= 0 {
			taken[node] = true
			w.kept = append(w.kept, keptNode{task: i, node: node, turn: w.l.turn(i), request: w.l.request(i)})
		}
	}
}

// least is the node where the least has to go for a task; of several the first, and -1 where
// none is left.
func (w *window) least(t *Task, taken map[int]bool) int {
	best := -1
	for at := range w.rest.nodes {
		if (best < 0 || w.held[at] < w.held[best]) && !taken[at] && w.rest.nodes[at].fits(t) {
			best = at
		}
	}
	return best
}

// takes is from whom a task on some GPUs of a node would take room that goes first, and would not have
// to give the room back to this one; nil: from none.
func (w *window) takes(i, node int, gpus []int) *keptNode {
	t := &w.l.tasks[i]
	for k := range w.kept {
		first := &w.kept[k]
		if first.node != node || !w.goesFirst(first, i) {
			continue
		}
		if r := w.l.request(i); first.turn.Queue != t.Queue && w.l.planned.Planner.Yields(&first.request, &r) {
			continue
		}
		w.rest.nodes[node].book(t, gpus)
		fits := w.rest.nodes[node].fits(&w.l.tasks[first.task])
		w.rest.nodes[node].free(t, gpus)
		if fits || turns.EndsBefore(w.l.lives.remaining(t, 0), w.soonest(first)) {
			return nil
		}
		return first
	}
	return nil
}

// goesFirst reports whether what a node is kept for still waits, and goes before another task.
func (w *window) goesFirst(first *keptNode, i int) bool {
	waits := first.task != i && w.l.running[first.task] == nil
	return waits && turns.GoesFirst(w.l.planned.Planner.Order(), w.l.clock(), first.turn, w.l.turn(i))
}

// bookFree books the free capacity of GPUs on nodes that are kept from a task. The result frees it again.
func (w *window) bookFree(i int) (restore func()) {
	s := w.l.planned.Snapshot
	var booked []string
	for k := range w.kept {
		first := &w.kept[k]
		if !w.goesFirst(first, i) {
			continue
		}
		u := s.Rest(w.names[first.node])
		u.ID, u.Pinned = "free:"+w.names[first.node], true
		if len(u.Takes) > 0 && s.Observe(u) == nil {
			booked = append(booked, u.ID)
		}
	}
	return func() {
		for _, id := range booked {
			s.MustRelease(id)
		}
	}
}

// except are all nodes but for some.
func (w *window) except(without map[int]bool) (list []string) {
	for at, name := range w.names {
		if !without[at] {
			list = append(list, name)
		}
	}
	return list
}

// others are the nodes with room for a task that it would take from none that goes first, but for
// some.
func (w *window) others(i int, without map[int]bool) []string {
	t := &w.l.tasks[i]
	var list []string
	for at := range w.free.nodes {
		m := &w.free.nodes[at]
		if !without[at] && m.fits(t) && w.takes(i, at, m.tightest(t)) == nil {
			list = append(list, w.names[at])
		}
	}
	return list
}

// soonest is when a task could start on the node that is kept for it, if all that is in its
// way ended early.
func (w *window) soonest(k *keptNode) time.Duration {
	if k.soonest != nil {
		return *k.soonest
	}
	var ends []turns.Ending
	for i := range w.on[k.node] {
		r := w.l.running[i]
		left := w.l.lives.remaining(&w.l.tasks[i], seconds64(w.l.now-r.start))
		ends = append(ends, turns.Ending{ID: strconv.Itoa(i), At: turns.MayBeGone(left)})
	}
	start := turns.Soonest(ends, func(gone map[string]bool) bool {
		free := w.free.nodes[k.node]
		free.gpus, free.gpuMemory = slices.Clone(free.gpus), slices.Clone(free.gpuMemory)
		for i := range w.on[k.node] {
			if gone[strconv.Itoa(i)] {
				free.free(&w.l.tasks[i], w.l.running[i].spot.GPUs)
			}
		}
		return free.fits(&w.l.tasks[k.task])
	})
	k.soonest = &start
	return start
}
