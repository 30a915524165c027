// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const (
	// calm is for how long nothing starts or stops when it is quiet.
	calm = 20 * time.Second
	// untilQuiet is how long it may take until all is well: what Nomad fails to start is
	// tried again after two minutes, and a deployment fails after 40 seconds, and takes
	// back what it started. In the model it is five minutes as well.
	untilQuiet = 5 * time.Minute
)

// look is what Nomad and the replica that leads say at one moment.
type look struct {
	jobs       map[jobKey]*api.Job
	allocs     []*api.AllocationListStub
	nodes      []*api.Node
	blocked    map[jobKey]*api.Evaluation
	deployment map[jobKey]string // status of the newest
	picture    *view.Cluster
}

func (h *history) look(ctx context.Context) (*look, error) {
	l := &look{jobs: map[jobKey]*api.Job{}, blocked: map[jobKey]*api.Evaluation{}, deployment: map[jobKey]string{}}
	all := (&api.QueryOptions{Namespace: "*", Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	var err error
	if _, l.picture = h.leader(ctx); l.picture == nil {
		return nil, fmt.Errorf("no replica leads")
	}
	if l.allocs, _, err = h.c.API.Allocations().List(all); err != nil {
		return nil, err
	}
	jobs, _, err := h.c.API.Jobs().List(all)
	if err != nil {
		return nil, err
	}
	for _, stub := range jobs {
		key, q := jobKey{stub.Namespace, stub.ID}, (&api.QueryOptions{Namespace: stub.Namespace}).WithContext(ctx)
		if l.jobs[key], _, err = h.c.API.Jobs().Info(stub.ID, q); err != nil {
			return nil, err
		}
		d, _, err := h.c.API.Jobs().LatestDeployment(stub.ID, q)
		if err != nil {
			return nil, err
		}
		if d != nil {
			l.deployment[key] = d.Status
		}
	}
	evals, _, err := h.c.API.Evaluations().List((&api.QueryOptions{Namespace: "*", Filter: `Status == "blocked"`}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	for _, e := range evals {
		if key := (jobKey{e.Namespace, e.JobID}); l.blocked[key] == nil || l.blocked[key].ModifyIndex < e.ModifyIndex {
			l.blocked[key] = e
		}
	}
	for _, n := range h.c.Nodes {
		node, _, err := h.c.API.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return nil, err
		}
		l.nodes = append(l.nodes, node)
	}
	return l, nil
}

// moves is what changes when anything is started or stopped.
func moves(list []*api.AllocationListStub) string {
	var lines []string
	for _, a := range list {
		lines = append(lines, fmt.Sprintf("%.8s of %s/%s is to %s, %s", a.ID, a.Namespace, a.JobID, a.DesiredStatus, a.ClientStatus))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// quiet waits until nothing starts or stops any more and nothing is wrong.
func (h *history) quiet(ctx context.Context) {
	h.t.Helper()
	began, told := time.Now(), time.Now()
	last, since := "", time.Now()
	wrong := []string{"nothing was looked at"}
	for time.Since(began) < untilQuiet && ctx.Err() == nil {
		h.notice(ctx)
		list, _, err := h.c.API.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
		switch now := moves(list); {
		case err != nil:
			wrong = []string{err.Error()}
		case now != last:
			last, since = now, time.Now()
			wrong = []string{"work is started and stopped still"}
		case time.Since(since) >= calm:
			l, err := h.look(ctx)
			if err != nil {
				wrong = []string{err.Error()}
			} else if moves(l.allocs) == now {
				wrong = h.wrong(l, began)
			}
		}
		if len(wrong) == 0 {
			took := time.Since(began)
			h.slowest = max(h.slowest, took)
			h.say("all is well after %s", took.Round(time.Second))
			return
		}
		if h.bound.tooLong() {
			break // it is known to fail
		}
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			h.say("  not yet after %s: %s", time.Since(began).Round(time.Second), strings.Join(wrong, "; "))
		}
		time.Sleep(time.Second)
	}
	h.t.Errorf("%s after the last event: %s", time.Since(began).Round(time.Second), strings.Join(wrong, "\n"))
}

// still wants nothing at all to be started or stopped for a minute.
func (h *history) still(ctx context.Context) {
	h.t.Helper()
	before := ""
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
		list, _, err := h.c.API.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
		if err != nil {
			continue
		}
		now := moves(list)
		if before == "" {
			before = now
		}
		if now != before {
			h.t.Errorf("nothing happens, and work is started or stopped:\n%s\nit was:\n%s", now, before)
			return
		}
	}
}

// wrong says what must not be once it is quiet.
func (h *history) wrong(l *look, since time.Time) (list []string) {
	if held := l.held("a"); held > bound {
		list = append(list, fmt.Sprintf("queue a holds %d slices of at most %d", held, bound))
	}
	list = append(list, twice(l.allocs)...)
	for _, key := range l.sorted() {
		list = append(list, l.halves(key)...)
		list = append(list, l.forgotten(key)...)
	}
	list = append(list, l.waiting()...)
	list = append(list, l.inVain(since)...)
	return append(list, l.miscounted()...)
}

// held is what a namespace holds, in slices.
func (l *look) held(namespace string) (n int) {
	for _, a := range l.allocs {
		if a.Namespace == namespace {
			n += slicesOf(a)
		}
	}
	return n
}

// live are a job's allocs that are to run and have not ended, by its version; done counts
// those that completed.
func (l *look) live(key jobKey) (live map[uint64]int, done int) {
	live = map[uint64]int{}
	for _, a := range l.allocs {
		switch {
		case a.Namespace != key.namespace || a.JobID != key.id:
		case a.ClientStatus == api.AllocClientStatusComplete && a.DesiredStatus == api.AllocDesiredStatusRun:
			done++
		case !cluster.Terminal(a) && a.DesiredStatus == api.AllocDesiredStatusRun:
			live[a.JobVersion]++
		}
	}
	return live, done
}

func total(live map[uint64]int) (n int) {
	for _, k := range live {
		n += k
	}
	return n
}

// idle reports whether a job is to run nothing, or is left to Nomad: what has ended,
// recurs or is dispatched.
func (l *look) idle(key jobKey) bool {
	j := l.jobs[key]
	_, done := l.live(key)
	return j == nil || *j.Stop || *j.Status == "dead" && done > 0 || j.IsPeriodic() || j.ParameterizedJob != nil
}

// abandoned reports whether Nomad by itself does not replace what a job has lost: allocs of batch
// jobs that a drain stopped (hashicorp/nomad#26929), and what failed in a deployment that ended.
func (l *look) abandoned(key jobKey) bool {
	j := l.jobs[key]
	return slices.ContainsFunc(l.allocs, func(a *api.AllocationListStub) bool {
		drained := *j.Type == "batch" && a.DesiredDescription == "alloc is being migrated"
		failed := a.ClientStatus == api.AllocClientStatusFailed && a.FollowupEvalID == ""
		return a.Namespace == key.namespace && a.JobID == key.id && a.JobVersion == *j.Version && a.NextAllocation == "" && (drained || failed)
	})
}

// halves tells of a gang that runs in part.
func (l *look) halves(key jobKey) (list []string) {
	if l.idle(key) || l.abandoned(key) {
		return nil
	}
	g := l.jobs[key].TaskGroups[0]
	live, done := l.live(key)
	n := live[*l.jobs[key].Version]
	if g.Tasks[0].Meta["gpu_gang"] == "true" && n != 0 && n+done < *g.Count {
		list = append(list, fmt.Sprintf("%d of %d of the gang %s run", n, *g.Count, key))
	}
	if g.Tasks[0].Meta["gpu_fallback_from"] != "" && len(g.Tasks[0].Resources.Devices) > 0 {
		list = append(list, fmt.Sprintf("%s fell back and has devices", key))
	}
	return list
}

// forgotten tells of what waits and the service does not know, and of what is missing and
// does not even wait.
func (l *look) forgotten(key jobKey) []string {
	j := l.jobs[key]
	pending := slices.ContainsFunc(l.picture.Pending, func(p view.Pending) bool { return p.Namespace == key.namespace && p.JobID == key.id })
	returns := slices.ContainsFunc(l.picture.Returning, func(r view.Returning) bool { return r.Namespace == key.namespace && r.JobID == key.id })
	e := l.blocked[key]
	blocked := e != nil && !*j.Stop
	live, done := l.live(key)
	deploys := l.deployment[key]
	switch g := j.TaskGroups[0]; {
	case blocked && !pending && len(g.Tasks[0].Resources.Devices) > 0:
		return []string{fmt.Sprintf("%s waits in Nomad, and the service does not show it", key)}
	case pending && !blocked:
		return []string{fmt.Sprintf("%s waits as the service shows it, and not in Nomad", key)}
	case l.idle(key) || l.abandoned(key) || pending || returns || deploys != "" && deploys != api.DeploymentStatusSuccessful:
	case total(live)+done < *g.Count:
		return []string{fmt.Sprintf("%d of %d of %s run, and nothing waits; its deployment is %q", total(live), *g.Count, key, deploys)}
	}
	return nil
}

// waiting goes through all that waits, in the order in which it is tried, and tells of what is
// held without a true reason. Room may be left to an earlier one that waits for room itself, and
// the quota of a queue to an earlier one that waits for it and could ever be paid for. A dispatched
// job may not be changed: Nomad alone places it, and what comes after it.
func (l *look) waiting() (list []string) {
	short, left := false, false // of queue a's quota; room is left to an earlier one
	for i, p := range l.picture.Pending {
		key := jobKey{p.Namespace, p.JobID}
		say := func(format string, args ...any) {
			list = append(list, fmt.Sprintf("%s, number %d of %d that wait, %d missing, for %s, %s: ", key, i+1, len(l.picture.Pending), p.Missing, p.Kind, p.Reason)+fmt.Sprintf(format, args...))
		}
		j := l.jobs[key]
		if j == nil || *j.Stop {
			say("it is not registered")
			continue
		}
		if j.Dispatched {
			return list
		}
		g := j.TaskGroups[slices.IndexFunc(j.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == p.Group })]
		need := l.need(p)
		over := key.namespace == "a" && (short || l.held("a")+l.owed(p)+need > bound)
		fits := !over && l.fits(g, p.Missing)
		if said := untrue(p, over, left); said != "" {
			say("%s; queue a holds %d slices of %d and it needs %d", said, l.held("a"), bound, need)
		}
		switch {
		case !fits:
		case !left:
			say("it could start: %v", constraints(j))
		case p.Kind == view.WaitsForRoom && g.Tasks[0].Meta["gpu_gang"] != "true":
			say("there is room, which is not said to be left to others: %v", constraints(j))
		}
		short = short || over && need <= bound // it keeps nothing from other queues
		left = left || !over
	}
	return list
}

// need is how many slices are missing of what waits.
func (l *look) need(p view.Pending) (n int) {
	if j := l.jobs[jobKey{p.Namespace, p.JobID}]; j != nil {
		g := j.TaskGroups[slices.IndexFunc(j.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == p.Group })]
		for _, d := range g.Tasks[0].Resources.Devices {
			n += int(*d.Count) * p.Missing
		}
	}
	return n
}

// owed is how many slices a queue keeps for what was admitted and waits for room, beside one group.
func (l *look) owed(beside view.Pending) (n int) {
	for _, p := range l.picture.Pending {
		if p.Namespace == beside.Namespace && p.JobID != beside.JobID && p.Kind == view.WaitsForRoom {
			n += l.need(p)
		}
	}
	return n
}

// untrue tells why the reason that the service shows for what waits is none: over is whether its queue
// cannot pay for it, left whether something before it waits for room.
func untrue(p view.Pending, over, left bool) string {
	switch {
	case p.Kind == view.WaitsForQuota && !over:
		return "its queue can pay for it"
	case p.Kind == view.WaitsForPriority && !left:
		return "nothing before it waits for room"
	case p.Kind == view.WaitsForHeadroom:
		return "no large job was ever submitted"
	}
	return ""
}

// fits reports whether so many allocs of a group find devices now, whatever marks the
// service gave it. All GPUs of these machines are of one kind.
func (l *look) fits(g *api.TaskGroup, missing int) bool {
	taken := map[string]bool{}
	for _, a := range l.allocs {
		if !cluster.Terminal(a) && a.AllocatedResources != nil {
			for _, task := range a.AllocatedResources.Tasks {
				for _, d := range task.Devices {
					for _, id := range d.DeviceIDs {
						taken[a.NodeID+id] = true
					}
				}
			}
		}
	}
	var free []map[*api.NodeDeviceResource]int
	for _, n := range l.nodes {
		if n.Status != "ready" || n.SchedulingEligibility != "eligible" || n.Drain {
			continue
		}
		groups := map[*api.NodeDeviceResource]int{}
		for _, d := range n.NodeResources.Devices {
			for _, in := range d.Instances {
				if in.Healthy && !taken[n.ID+in.ID] {
					groups[d]++
				}
			}
		}
		free = append(free, groups)
	}
	blocks := g.Tasks[0].Resources.Devices
	for range missing {
		if !slices.ContainsFunc(free, func(groups map[*api.NodeDeviceResource]int) bool {
			try := maps.Clone(groups)
			for _, b := range blocks {
				found := false
				for d, n := range try {
					if n >= int(*b.Count) && strings.HasPrefix(d.Vendor+"/"+d.Type+"/"+d.Name, b.Name) {
						try[d], found = n-int(*b.Count), true
						break
					}
				}
				if !found {
					return false
				}
			}
			maps.Copy(groups, try)
			return true
		}) {
			return false
		}
	}
	return len(blocks) > 0
}

// inVain are evictions of this quiet time for what does not run now, and did not go for
// another one in turn. Others may have taken the room: a dispatched job that is not to be kept
// off it, or one of a lower priority. Nomad evaluates as many jobs at once as its server has
// processors, and who is ready first is placed first.
func (l *look) inVain(since time.Time) (list []string) {
	for _, e := range l.picture.Events {
		if e.At.Before(since) || e.Kind != "evict" && e.Kind != "reclaim" || e.For == "" {
			continue
		}
		namespace, id, _ := strings.Cut(e.For, "/")
		key := jobKey{namespace, id}
		live, done := l.live(key)
		taken := slices.ContainsFunc(l.allocs, func(a *api.AllocationListStub) bool {
			j := l.jobs[jobKey{a.Namespace, a.JobID}]
			return j != nil && j.Dispatched && time.Unix(0, a.CreateTime).After(e.At.Add(-time.Second))
		}) || l.taken(e)
		taken = taken || slices.ContainsFunc(l.picture.Events, func(later view.Event) bool {
			return later.At.After(e.At) && later.AllocID != "" && later.Namespace == namespace && later.JobID == id
		})
		if !taken && !l.idle(key) && total(live)+done == 0 {
			list = append(list, "what was evicted for does not run: "+e.Text)
		}
	}
	return list
}

// taken reports whether another job than the victim's and the one that room was made for started
// on the victim's node since.
func (l *look) taken(e view.Event) bool {
	at := slices.IndexFunc(l.allocs, func(a *api.AllocationListStub) bool { return a.ID == e.AllocID })
	return at >= 0 && slices.ContainsFunc(l.allocs, func(a *api.AllocationListStub) bool {
		other := a.JobID != e.JobID && a.Namespace+"/"+a.JobID != e.For
		return other && a.NodeID == l.allocs[at].NodeID && time.Unix(0, a.CreateTime).After(e.At)
	})
}

// miscounted compares what the service says that queues hold with what Nomad says. Room that
// was made or promised lately counts too: a promise ends after two minutes.
func (l *look) miscounted() (list []string) {
	promised := slices.ContainsFunc(l.picture.Events, func(e view.Event) bool { return l.picture.At.Sub(e.At) < 130*time.Second })
	for _, q := range l.picture.Queues {
		held := int64(0)
		for _, namespace := range q.Namespaces {
			held += int64(l.held(namespace))
		}
		const slices = 14 // of a T4
		if want := held * 1000 / slices; q.UsedMilli < want-30 || q.UsedMilli > want+30 && !promised {
			list = append(list, fmt.Sprintf("queue %s holds %d slices, and as the service shows it %d thousandths of a GPU", q.Name, held, q.UsedMilli))
		}
	}
	return list
}
