// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// historyKind is what a history has beside its events.
type historyKind int

const (
	plain    historyKind = iota
	slow                 // jobs that take long to stop, and batch jobs that end
	refusing             // and nodes that Nomad refuses for a reason that the service does not see
)

func historyOf(seed uint64) historyKind { return historyKind(seed % 3) }

// beOdd gives some jobs of a history properties of their own. It has its own random numbers: the
// events of a seed are the same with it and without.
func (h *modelRun) beOdd(seed uint64, kind historyKind) {
	h.odd, h.part = rand.New(rand.NewPCG(seed, 11)), rand.New(rand.NewPCG(seed, 13))
	if kind == plain {
		return
	}
	h.stops = map[string]int{}
	for i := range 6 {
		h.stops[fmt.Sprintf("j%d", i)] = []int{2, 2, 5, 20, 90}[h.odd.IntN(5)]
	}
	if kind != refusing {
		return
	}
	refused := map[string]string{}
	for _, namespace := range []string{"a", "b", "c"} {
		for i := range 6 {
			if h.odd.IntN(5) == 0 {
				refused[fmt.Sprintf("%s/j%d", namespace, i)] = h.nodes[h.odd.IntN(len(h.nodes))].ID
			}
		}
	}
	h.refuses = func(j *modelJob, n *api.Node) string {
		// A gang that Nomad starts in part rests for longer than a quiet time.
		if refused[j.key.String()] == n.ID && j.job.TaskGroups[0].Tasks[0].Meta["gpu_gang"] != "true" {
			return "missing compatible host volumes"
		}
		return ""
	}
}

// refused reports whether Nomad refuses a job some node.
func (h *modelRun) refused(j *modelJob) bool {
	return h.refuses != nil && slices.ContainsFunc(h.nodes, func(n *api.Node) bool { return h.refuses(j, n) != "" })
}

// couldStart reports whether all that is missing of a group would find devices now, whatever marks
// the service gave it.
func (h *modelRun) couldStart(g *api.TaskGroup, missing int) bool {
	taken := map[string]bool{}
	for _, a := range h.allocs {
		for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
			for _, id := range d.DeviceIDs {
				taken[id] = true
			}
		}
	}
	blocks := g.Tasks[0].Resources.Devices
	for range missing {
		if !slices.ContainsFunc(h.nodes, func(n *api.Node) bool {
			try := maps.Clone(taken)
			fits := h.devices(n, blocks, try) != nil
			if fits {
				taken = try
			}
			return fits
		}) {
			return false
		}
	}
	return len(blocks) > 0
}

// oracle says what waits although nothing keeps it: the first in the order that its queue can pay
// for, where there is room for it. What comes after one that waits for room, or in the same queue
// after one that waits for quota, may have to leave that to it. Nothing is said of what comes after a job that Nomad refuses a node for a reason of its
// own, or that may not be changed: Nomad alone places it.
func (h *modelRun) oracle() (wrong []string) {
	var list []state.Waiting
	h.believed.Do(func(tx *state.Tx) {
		for _, w := range slices.Collect(tx.Queue.Waiting()) {
			list = append(list, *w)
		}
	})
	short := false // something waits for the quota of queue a
	for i, w := range list {
		j := h.jobs[w.Job.String()]
		if j == nil || j.job.Dispatched && !scaled(j) || j.job.IsParameterized() || h.refused(j) {
			return wrong
		}
		at := slices.IndexFunc(j.job.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == w.Group })
		g, missing := j.job.TaskGroups[at], w.Missing
		need := 0
		for _, d := range g.Tasks[0].Resources.Devices {
			need += int(*d.Count) * missing
		}
		if w.Job.Namespace == "a" && (short || h.used("a")+need > 32) {
			short = true
			continue // it waits for its queue, and keeps nothing from other ones
		}
		if h.couldStart(g, missing) {
			wrong = append(wrong, fmt.Sprintf("%s, number %d of %d that wait, could start: %d missing, %v", w.Job, i+1, len(list), missing, constraintsOf(g)))
		}
		return wrong
	}
	return wrong
}

// inVain are the evictions for what does not run now, unless that ran and had to go for others. A
// dispatched job may have taken the room: Nomad does not let it be changed, and so it is not kept off
// that.
func (h *modelRun) inVain(log []string) (lines []string) {
	if h.dispatched > 0 {
		return nil
	}
	for i, line := range log {
		if !strings.Contains(line, "   evict: ") && !strings.Contains(line, "   reclaim: ") {
			continue
		}
		_, after, found := strings.Cut(line, ": job ")
		whom, _, _ := strings.Cut(after, " ")
		wentItself := slices.ContainsFunc(log[i+1:], func(later string) bool { return strings.Contains(later, ": "+whom+" (priority ") })
		if j := h.jobs[whom]; found && !wentItself && j != nil && !h.refused(j) && h.holds(j) == 0 {
			lines = append(lines, line)
		}
	}
	return lines
}

// waitingInNomad is for how long a group may wait in Nomad without a hold and without room that is booked
// for it: until the next look of the loop, after a pause where the last one could not help it.
const waitingInNomad = 15

// keepsToItsRoom reports whether Nomad may start a group only on nodes that have or were promised allocs of
// it, and not more of them.
func (h *modelRun) keepsToItsRoom(tx *state.Tx, j *modelJob, g *api.TaskGroup) bool {
	booked := map[string]int{}
	for _, p := range tx.Capacity.AssumedOf(j.key) {
		if p.Group == *g.Name {
			booked[p.Usage.NodeID]++
		}
	}
	for _, a := range h.allocs {
		if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.stub.TaskGroup == *g.Name && a.stopping == 0 {
			booked[a.stub.NodeID]++
		}
	}
	return len(booked) > 0 && !slices.ContainsFunc(h.nodes, func(n *api.Node) bool { return admitted(g, n) && booked[n.ID] == 0 }) &&
		slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool {
			n, err := strconv.Atoi(c.RTarget)
			return err == nil && c.Operand == "distinct_property" && n <= slices.Max(slices.Collect(maps.Values(booked)))
		})
}

// noteWaiting notes what waits in Nomad, where it could start at any time: no hold keeps it, and its room
// is not booked. What may not be registered again is let be, and so is what came around the service, what
// starts on every node, and a gang that goes back as one.
func (h *modelRun) noteWaiting() {
	if h.unheld == nil {
		h.unheld = map[string]int{}
	}
	before := maps.Clone(h.unheld)
	clear(h.unheld)
	h.believed.Do(func(tx *state.Tx) {
		for _, j := range h.jobs {
			for group, missing := range j.blocked {
				r := tx.Queue.Record(j.key)
				if r == nil || j.job.ParentID != nil && *j.job.ParentID != "" && !scaled(j) || j.job.IsParameterized() || *j.job.Type == "system" || *j.job.Type == "sysbatch" || h.holds(j) > 0 && j.job.TaskGroups[0].Tasks[0].Meta["gpu_gang"] == "true" || tx.Queue.Unrecorded(j.key) || tx.Queue.Drifted(j.key) || !tx.Queue.Repeats(j.key).May() {
					continue
				}
				g, known := r.Groups[group]
				registered := j.job.LookupTaskGroup(group)
				held := slices.ContainsFunc(constraintsOf(registered), func(c string) bool { return strings.Contains(c, ": waits for ") })
				if !known || held || len(registered.Tasks[0].Resources.Devices) == 0 || tx.Capacity.Assumed(j.key, group) >= missing || h.keepsToItsRoom(tx, j, registered) {
					continue
				}
				name := j.key.String() + "/" + g.Ask.Group
				if h.unheld[name] = before[name] + 1; h.unheld[name] == waitingInNomad {
					h.waited = append(h.waited, fmt.Sprintf("%s %s: %d of %d missing, %v", time.Now().Format("04:05"), name, missing, *registered.Count, constraintsOf(registered)))
				}
			}
		}
	})
}
