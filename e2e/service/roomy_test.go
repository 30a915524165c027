// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// spare is how many slices are wanted outside queue a once room was made: a third of what the machines
// have. As much as queue a may hold is left for what it may not.
const spare = 2 * 14

// partially is for how long a gang may run in part: a minute, then it is held and stopped.
const partially = 150 * time.Second

// roomy leaves room in the cluster while queue a has more to do than it may. Room is what hides
// a missing quota in a full cluster, and what makes whoever waits without a reason stand out.
func (h *history) roomy(ctx context.Context, round int) {
	h.t.Helper()
	h.fill(ctx)
	h.makeRoom(ctx)
	if h.overfill(ctx, round); round%2 == 1 {
		h.breakGang(ctx)
	}
	h.release(ctx)
}

// wholes registers a service of so many whole GPUs.
func (h *history) wholes(ctx context.Context, about jobKey, priority, count int, gang bool) {
	h.enter(ctx, h.through(), about, func() *api.Job {
		one := job{id: about.id, namespace: about.namespace, kind: "service", priority: priority, count: count, meta: map[string]string{"gpu": "1", "version": strconv.Itoa(h.rng.IntN(100))}}
		if gang {
			one.meta["gpu_gang"] = "true"
		}
		return restarted(one.api())
	})
}

// enter registers a job of its caller's.
func (h *history) enter(ctx context.Context, to *api.Client, about jobKey, next func() *api.Job) {
	around := ""
	if to == h.c.API {
		around = " around the service"
	}
	h.say("register %s%s", about, around)
	h.told(h.send(ctx, h.rng, to, "register", about, func() *api.Job { return h.described(next()) }))
}

// pause waits, and notices who decides.
func (h *history) pause(ctx context.Context, limit time.Duration, over func() bool) bool {
	for began := time.Now(); time.Since(began) < limit && ctx.Err() == nil; time.Sleep(250 * time.Millisecond) {
		h.notice(ctx)
		if over() {
			return true
		}
	}
	return false
}

// seeing is what Nomad and the leader say as soon as one does.
func (h *history) seeing(ctx context.Context) *look {
	h.t.Helper()
	var l *look
	var err error
	if !h.pause(ctx, 2*time.Minute, func() bool { l, err = h.look(ctx); return err == nil }) {
		h.t.Fatalf("no replica leads for two minutes: %v", err)
	}
	return l
}

// theGang is held as one while the cluster is full, and is to start once it is not.
var theGang = jobKey{"b", "job-4"}

// fill has everything be full, with work that has to wait in each queue.
func (h *history) fill(ctx context.Context) {
	h.t.Helper()
	h.seeing(ctx)
	h.wholes(ctx, jobKey{"b", "job-0"}, 90, 2, false)
	h.wholes(ctx, jobKey{"c", "job-2"}, 90, 4, false)
	h.wholes(ctx, theGang, 10, 2, true)
	h.wholes(ctx, jobKey{"a", "job-0"}, 50, 2, false)
	h.wholes(ctx, jobKey{"a", "job-2"}, 50, 2, false)
	h.pause(ctx, 5*time.Second, func() bool { return false })
}

// wanted is how many slices a job is to hold.
func (l *look) wanted(key jobKey) (n int) {
	j := l.jobs[key]
	if *j.Stop || *j.Status == "dead" || j.IsPeriodic() || j.IsParameterized() {
		return 0
	}
	for _, g := range j.TaskGroups {
		for _, d := range g.Tasks[0].Resources.Devices {
			n += *g.Count * int(*d.Count)
		}
	}
	return n
}

// sorted are the jobs, by their names.
func (l *look) sorted() []jobKey {
	return slices.SortedFunc(maps.Keys(l.jobs), func(x, y jobKey) int { return strings.Compare(x.String(), y.String()) })
}

// makeRoom stops jobs of the other queues, until they want a third of the cluster, and waits
// until these have ended and queue a has taken what it may.
func (h *history) makeRoom(ctx context.Context) {
	h.t.Helper()
	l := h.seeing(ctx)
	keys, sum := l.sorted(), 0
	for _, key := range keys {
		if key.namespace != "a" {
			sum += l.wanted(key)
		}
	}
	h.rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys {
		if n := l.wanted(key); sum > spare && n > 0 && key.namespace != "a" && key != theGang {
			sum -= n
			h.request(ctx, h.through(), "stop", key)
		}
	}
	h.say("others want %d slices of %d", sum, 6*14)
	h.pause(ctx, time.Minute, func() bool {
		l, err := h.look(ctx)
		return err == nil && l.ended() && l.held("a") > bound-7
	})
}

// ended reports whether all that was stopped has ended.
func (l *look) ended() bool {
	return !slices.ContainsFunc(l.allocs, func(a *api.AllocationListStub) bool { return a.DesiredStatus != "run" && !cluster.Terminal(a) })
}

// theParent is a periodic job of queue a.
var theParent = jobKey{"a", "periodic-2"}

// bear registers the periodic job whose children Nomad is to start when queue a is full. While
// there is room in the queue the service lets them start.
func (h *history) bear(ctx context.Context) {
	h.enter(ctx, h.through(), theParent, func() *api.Job {
		j := job{id: theParent.id, namespace: theParent.namespace, kind: "batch", meta: map[string]string{"gpu": "1"}, seconds: 15}.api()
		recurring(j)
		return restarted(j)
	})
}

// overfill has Nomad by itself start too much in queue a, which is to come back.
func (h *history) overfill(ctx context.Context, round int) {
	h.t.Helper()
	before, began := h.bound.above.Load(), time.Now()
	h.request(ctx, h.c.API, "force", theParent)
	direct := h.stranger(ctx)
	h.enter(ctx, h.c.API, direct, func() *api.Job {
		n := uint64(14)
		return restarted(job{id: direct.id, namespace: "a", count: 2, meta: map[string]string{"version": strconv.Itoa(round)}, devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &n}}}.api())
	})
	if !h.pause(ctx, 30*time.Second, func() bool {
		l, err := h.look(ctx)
		return err == nil && (h.bound.above.Load() > before || h.bound.held.Load() > bound) && l.startedSince(direct, began)
	}) {
		h.say("  the queue was not above its bound")
		return
	}
	h.overfilled++
	if l := h.seeing(ctx); slices.ContainsFunc(l.sorted(), func(key jobKey) bool {
		return key.namespace == "a" && strings.HasPrefix(key.id, theParent.id+"/") && l.startedSince(key, began)
	}) {
		h.children++
	}
	since := time.Now()
	back := h.pause(ctx, 2*aboveFor, func() bool {
		if h.bound.held.Load() > bound {
			since = time.Now()
		}
		return time.Since(since) > 5*time.Second || h.bound.tooLong()
	})
	if !back || h.bound.tooLong() {
		h.t.Errorf("the queue of namespace a holds %d slices of %d, and does not come back", h.bound.held.Load(), bound)
	}
}

// stranger is a job of queue a, to be registered around the service, of which nothing runs.
func (h *history) stranger(ctx context.Context) (key jobKey) {
	h.t.Helper()
	l := h.seeing(ctx)
	for n := 6; ; n += 2 {
		key = jobKey{"a", fmt.Sprintf("job-%d", n)}
		if live, _ := l.live(key); total(live) == 0 {
			return key
		}
	}
}

// startedSince reports whether Nomad has started something of a job since.
func (l *look) startedSince(key jobKey, since time.Time) bool {
	return slices.ContainsFunc(l.allocs, func(a *api.AllocationListStub) bool {
		return a.Namespace == key.namespace && a.JobID == key.id && time.Unix(0, a.CreateTime).After(since)
	})
}

// breakGang has Nomad be able to start only a part of a gang: no node takes new work. What is
// left of it has to go.
func (h *history) breakGang(ctx context.Context) {
	h.t.Helper()
	live := func() []*api.AllocationListStub { return allocs(ctx, h.t, h.c.API, theGang.namespace, theGang.id) }
	if !h.pause(ctx, time.Minute, func() bool { return len(live()) == 2 }) {
		h.say("  %s does not run", theGang)
		return
	}
	for _, n := range h.c.Nodes {
		_, err := h.c.API.Nodes().ToggleEligibility(n.ID, false, nil)
		h.told(err)
		h.closed[n] = true
	}
	h.request(ctx, h.c.API, "stop alloc", theGang)
	h.pause(ctx, 30*time.Second, func() bool { return len(live()) == 1 })
	began := time.Now()
	if !h.pause(ctx, partially, func() bool { return len(live()) != 1 }) {
		h.t.Errorf("1 of 2 of the gang %s runs, for %s", theGang, partially)
	}
	h.broken++
	h.say("  %d of %s run after %s", len(live()), theGang, time.Since(began).Round(time.Second))
	h.calmDown(ctx)
	h.wholes(ctx, theGang, 10, 2, true) // it need not rest any more
}

// letGoWithin is how soon something of what waits for quota is to start once there is all of it, and room.
const letGoWithin = 2 * time.Minute

// release stops what holds GPUs in queue a: something that waits there is to start.
func (h *history) release(ctx context.Context) {
	h.t.Helper()
	l := h.seeing(ctx)
	waiting := l.payable()
	for _, key := range l.sorted() {
		live, _ := l.live(key)
		if l.wanted(key) > 0 && key.namespace == "a" && total(live) > 0 && !strings.Contains(key.id, "/") {
			h.request(ctx, h.through(), "stop", key)
			delete(waiting, key)
		}
	}
	began := time.Now()
	if len(waiting) > 0 && !h.pause(ctx, letGoWithin, func() bool {
		l, err := h.look(ctx)
		return err == nil && slices.ContainsFunc(l.sorted(), func(key jobKey) bool { return waiting[key] && l.startedSince(key, began) })
	}) {
		h.t.Errorf("queue a holds %d slices of %d, and nothing that waited for its quota has started for %s: %v", h.bound.held.Load(), bound, letGoWithin, slices.Collect(maps.Keys(waiting)))
	}
	h.say("  something of queue a started after %s", time.Since(began).Round(time.Second))
	h.bear(ctx)
}

// payable are the jobs that wait for the quota of queue a, and which it could pay for if it held
// nothing else.
func (l *look) payable() map[jobKey]bool {
	list := map[jobKey]bool{}
	for _, p := range l.picture.Pending {
		if key := (jobKey{p.Namespace, p.JobID}); p.Kind == view.WaitsForQuota && key.namespace == "a" && l.need(p) <= bound && l.jobs[key] != nil && !l.jobs[key].Dispatched {
			list[key] = true
		}
	}
	return list
}
