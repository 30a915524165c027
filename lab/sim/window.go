// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
)

// sight is the cluster of a replay as the window looks at it: which nodes have room for a task once the
// tasks with GPUs have gone, and how much has to go there. All work of a replay ends by itself.
type sight struct {
	l      *live
	rest   *cluster // with the tasks on it that take no GPU
	held   []int64  // GPU milli, by node
	window *turns.Window
}

func newSight(l *live, nodes []Node) *sight {
	return &sight{l: l, rest: newCluster(nodes), held: make([]int64, len(nodes))}
}

// move books what a task holds (sign 1), or that it holds it no more (-1). Other nodes may be kept after that.
func (s *sight) move(i int, spot Spot, sign int64) {
	s.window = nil
	t := &s.l.tasks[i]
	switch {
	case t.GPUs > 0:
		s.held[spot.Node] += sign * max(1, t.Demand())
	case sign > 0:
		s.rest.nodes[spot.Node].book(t, nil)
	default:
		s.rest.nodes[spot.Node].free(t, nil)
	}
}

// turns is the window of this moment: the tasks that wait for room or their turn, in their order.
func (s *sight) turns() *turns.Window {
	if s.window != nil {
		return s.window
	}
	planner := s.l.planned.Planner
	s.window = turns.NewWindow(planner, s.l.planned.Snapshot, s.l.clock, s.l.bounded.Kept)
	for _, i := range s.l.waiting {
		if s.window.Left() <= 0 {
			break
		}
		if why := s.l.why[i]; s.l.running[i] != nil || why == forQuota || why == forHeadroom {
			continue
		}
		kept := turns.Kept{Work: *s.l.asker(i)}
		if node := s.least(&s.l.tasks[i]); node >= 0 {
			kept.Node, kept.Room = s.l.planned.names[node], &waiter{s.l, i, node, s.l.planned.names[node]}
		}
		s.window.Keep(kept)
	}
	return s.window
}

// least is the node where the least has to go for a task; of several the first, and -1 where
// none is left.
func (s *sight) least(t *Task) int {
	best := -1
	for at := range s.rest.nodes {
		if (best < 0 || s.held[at] < s.held[best]) && s.rest.nodes[at].fits(t) && !s.window.Taken[s.l.planned.names[at]] {
			best = at
		}
	}
	return best
}

// without are all nodes but for some; none where all are meant.
func (s *sight) without(except map[string]bool) (list []string) {
	if len(except) == 0 {
		return nil
	}
	for _, name := range s.l.planned.names {
		if !except[name] {
			list = append(list, name)
		}
	}
	return list
}

// asker is a task that waits or asks for room, as the window takes it.
func (l *live) asker(i int) *turns.Work {
	return &turns.Work{
		Job: l.planned.ids[&l.tasks[i]], Turn: l.turn(i),
		Request: func() *place.Request { r := l.request(i); return &r },
		Runs:    func(*place.Usage) forecast.Remaining { return l.lives.remaining(&l.tasks[i], 0) },
	}
}

// waiter is a task that waits for room on a node.
type waiter struct {
	l        *live
	task, at int
	node     string
}

// Serves implements [turns.Room].
func (w *waiter) Serves(without func(*place.Usage) bool) bool {
	free, _ := w.l.planned.Snapshot.FreeWithout(w.node, without)
	m := machine{model: w.l.empty.nodes[w.at].model, cpu: free.CPUMHz, memory: free.MemoryMiB}
	for _, g := range free.GPUs {
		m.gpus, m.gpuMemory = append(m.gpus, g.Milli), append(m.gpuMemory, g.Slices) // placeNode: a slice is a milli
	}
	return m.fits(&w.l.tasks[w.task])
}

// Leaves implements [turns.Room].
func (w *waiter) Leaves(u *place.Usage) bool { return u.Ends && len(u.Takes) > 0 }

// Left implements [turns.Room].
func (w *waiter) Left(u *place.Usage) forecast.Remaining {
	i, err := strconv.Atoi(u.ID)
	if err != nil || w.l.running[i] == nil {
		return forecast.Remaining{}
	}
	return w.l.lives.remaining(&w.l.tasks[i], seconds64(w.l.now-w.l.running[i].start))
}
