package decide

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Picture draws the book for people. The caller adds what the book does not
// know: who leads.
func (b *Book) Picture() (*view.Cluster, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.synced.IsZero() {
		return nil, b.ready()
	}
	c := &view.Cluster{
		At: b.now(), Index: b.index, Synced: b.synced, DryRun: b.config.Preemption.DryRun,
		Nodes: []view.Node{}, Queues: []view.Queue{}, Pending: b.pending(),
		Decisions: newestFirst(b.log.decisions), Events: newestFirst(b.log.events),
	}
	holders := b.holders()
	for id := range b.nodes {
		c.Nodes = append(c.Nodes, b.drawNode(id, holders[id]))
	}
	slices.SortFunc(c.Nodes, func(x, y view.Node) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.ID, y.ID))
	})
	c.Queues = b.drawQueues(c.Pending)
	c.Holds = b.shownHolds()
	return c, nil
}

// holders groups the allocs with GPUs by node.
func (b *Book) holders() map[string][]*nomad.Alloc {
	found := map[string][]*nomad.Alloc{}
	for _, a := range b.allocs {
		if len(a.Devices) > 0 {
			found[a.NodeID] = append(found[a.NodeID], a)
		}
	}
	for _, list := range found {
		slices.SortFunc(list, func(x, y *nomad.Alloc) int { return strings.Compare(x.ID, y.ID) })
	}
	return found
}

func (b *Book) drawNode(id string, holders []*nomad.Alloc) view.Node {
	n := b.nodes[id]
	v := n.View
	for _, u := range b.snap.UsagesOn(id) {
		v.CPUUsedMHz += u.CPUMHz
		v.MemoryUsedMiB += u.MemoryMiB
	}
	v.GPUs = slices.Clone(n.View.GPUs)
	for i := range v.GPUs {
		v.GPUs[i].Instances = slices.Clone(v.GPUs[i].Instances)
		v.GPUs[i].Holders = []view.Holder{}
	}
	for _, a := range holders {
		b.drawHolder(n, &v, a)
	}
	for i := range v.GPUs {
		v.GPUs[i].HeldMilli = min(v.GPUs[i].HeldMilli, gpu.MilliPerGPU)
	}
	return v
}

// drawHolder enters what an alloc holds into the node's GPUs.
func (b *Book) drawHolder(n *nomad.Node, v *view.Node, a *nomad.Alloc) {
	queue := ""
	if q := b.queueOf(a.Key(), a.Group); q != nil {
		queue = q.Name
	}
	for _, d := range a.Devices {
		count := map[int]int{}
		for _, id := range d.IDs {
			at, ok := n.Links[id]
			if !ok {
				continue
			}
			count[at.GPU]++
			in := &v.GPUs[at.GPU].Instances[at.Instance]
			in.AllocID, in.Task = a.ID, d.Task
		}
		for _, at := range slices.Sorted(maps.Keys(count)) {
			plan := &n.Plan.GPUs[at]
			take := takeOf(plan, int64(count[at]), b.guarantee(a, d.Task))
			take.GPU = at
			cost := b.snap.Charge(n.Plan.ID, []place.Take{take})
			h := view.Holder{
				AllocID: a.ID, Namespace: a.Namespace, JobID: a.Job, Group: a.Group, Task: d.Task, Queue: queue,
				Priority: b.priorityOf(a.Key()), Status: a.Status, Instances: count[at], GuaranteeMilli: take.Milli,
				LimitMilli: b.limitOf(a, d.Task), Since: a.Created, Direct: b.direct(a.Key()),
			}
			if plan.Mode != gpu.ModeShared {
				h.MemoryMiB = cost.MemoryMiB
			}
			g := &v.GPUs[at]
			g.HeldMilli += take.Milli
			g.HeldMemoryMiB += h.MemoryMiB
			g.HeldInstances += count[at]
			g.Holders = append(g.Holders, h)
		}
	}
}

func (b *Book) limitOf(a *nomad.Alloc, task string) int64 {
	if j := b.jobs[a.Key()]; j != nil {
		if g := j.Group(a.Group); g != nil {
			if t := g.Task(task); t != nil {
				return t.LimitMilli
			}
		}
	}
	return 0
}

func (b *Book) drawQueues(pending []view.Pending) []view.Queue {
	list := make([]view.Queue, 0, len(b.config.Queues))
	for i := range b.config.Queues {
		q := &b.config.Queues[i]
		v := view.Queue{Name: q.Name, Parent: q.Parent, Namespaces: q.Namespaces, QuotaMilli: q.QuotaMilli, QuotaMemoryMiB: q.QuotaMemoryMiB}
		v.MaxMilli, v.MaxMemoryMiB = q.Limit()
		if b.quotas != nil {
			used, borrowed := b.quotas.Used(b.snap, q.Name), b.quotas.Borrowed(b.snap, q.Name)
			v.UsedMilli, v.UsedMemoryMiB = used.Milli, used.MemoryMiB
			v.BorrowedMilli, v.BorrowedMemoryMiB = borrowed.Milli, borrowed.MemoryMiB
			for _, u := range b.holdersIn(q.Name, b.direct) {
				v.DirectMilli += b.snap.Charge(u.NodeID, u.Takes).Milli
			}
		}
		for _, p := range pending {
			if p.Queue == q.Name {
				v.Pending++
			}
		}
		list = append(list, v)
	}
	return list
}

// pending lists what waits, in the order in which it is tried.
func (b *Book) pending() []view.Pending {
	list := []view.Pending{}
	for key, blocked := range b.blocked {
		j := b.jobs[key]
		if j == nil || !j.GPU || j.Stopped {
			continue
		}
		for i := range j.Groups {
			if missing := blocked.Missing[j.Groups[i].Name]; missing > 0 && j.Groups[i].GPU() {
				list = append(list, b.drawPending(j, &j.Groups[i], blocked, missing))
			}
		}
	}
	slices.SortFunc(list, func(x, y view.Pending) int {
		return b.plan.Compare(turnOf(&x), turnOf(&y))
	})
	return list
}

// turnOf is something that waits, as far as the order goes.
func turnOf(p *view.Pending) *place.Request {
	return &place.Request{ID: p.Namespace + "/" + p.JobID + "/" + p.Group, Queue: p.Queue, Priority: p.Priority, Submit: p.Since}
}

func (b *Book) drawPending(j *nomad.Job, g *nomad.Group, blocked *nomad.Blocked, missing int) view.Pending {
	p := view.Pending{
		Namespace: j.Key.Namespace, JobID: j.Key.ID, Group: g.Name, Missing: missing, Priority: j.Priority,
		Since: blocked.Since, Ask: g.Text(), Kind: view.WaitsForRoom, Reason: "no node has room now", Direct: b.direct(j.Key),
	}
	if q := b.queueOf(j.Key, g.Name); q != nil {
		p.Queue = q.Name
		p.Priority = min(p.Priority, q.MaxPriority)
	}
	if b.futile[j.Key.String()+"/"+g.Name] {
		p.Note = "no eviction that is allowed would make room"
	}
	if p.Direct {
		p.Reason += "; Nomad alone places it, since it came around the service"
	}
	r := b.records[j.Key]
	if r == nil {
		return p
	}
	known := r.Groups[g.Name]
	switch {
	case known.Decision.Hold != nil:
		p.Kind, p.Reason = known.Decision.Hold.Kind, known.Decision.Hold.Sentence
	case known.Shown.Summary != "" && len(known.Flights) == 0:
		p.Reason = waitsBecause(known)
	}
	if known.Shown.Ask != "" {
		p.Ask = known.Shown.Ask
	}
	return p
}

// waitsBecause is a group's reason to wait: its summary and what explains it,
// which begins with the summary where the group found no room.
func waitsBecause(g GroupRecord) string {
	lines := slices.DeleteFunc(slices.Clone(g.Decision.Explanation), func(line string) bool { return line == g.Shown.Summary })
	return strings.Join(append([]string{g.Shown.Summary}, lines...), "; ")
}
