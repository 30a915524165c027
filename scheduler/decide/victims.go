package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Eviction is a choice of work that has to go so that a waiting alloc fits.
type Eviction struct {
	For     nomad.JobKey
	Group   string
	Node    string
	Victims []Victim // lowest priority first
	// Reclaim is set when the room was borrowed from the queue of the one that
	// waits; otherwise its higher priority decides.
	Reclaim bool
	// Text says who, for whom and why.
	Text string
}

// Victim is an alloc to evict.
type Victim struct {
	AllocID, Group string
	Job            nomad.JobKey
	Priority       int
	Queue          string
}

// option is a node's price for taking the waiting alloc.
type option struct {
	node    string
	victims []place.Usage
	reclaim bool
}

// evict chooses the victims for one alloc of a waiting group: lowest priority
// first, fewest victims, least work lost. It starts with all that may be
// taken on a node, and gives back what is not needed. Nil means that no
// eviction would help.
func (b *Book) evict(key nomad.JobKey, g *GroupRecord) *Eviction {
	priority, queue := g.Ask.Priority, ""
	if q, err := b.config.QueueFor(g.Ask.Namespace, g.Ask.Queue); err == nil && q != nil {
		queue, priority = q.Name, min(priority, q.MaxPriority)
		if b.overQuota(q.Name, g.Cost) != "" {
			return nil
		}
	}
	owed := queue != "" && b.owed(queue, g.Cost)
	var best *option
	for _, id := range b.nodeIDs() {
		n := b.nodes[id]
		if n.Plan.Ineligible || !admits(n, &g.Ask) || g.Excluded[id] != "" {
			continue
		}
		if o := b.option(n, key, g, priority, queue, owed); o != nil && (best == nil || b.compareOptions(o, best) < 0) {
			best = o
		}
	}
	if best == nil {
		return nil
	}
	return b.eviction(key, g, best, priority, queue)
}

// option finds the cheapest victims on one node, nil if none suffice.
func (b *Book) option(n *nomad.Node, key nomad.JobKey, g *GroupRecord, priority int, queue string, owed bool) *option {
	o := &option{node: n.Plan.ID}
	usages := b.usagesOn(n.Plan.ID)
	r := roomOf(n, usages)
	if r.serve(n, g.Ask.CPUMHz, g.Ask.MemoryMiB, g.Blocks) {
		return nil // there is room; Nomad is about to use it
	}
	var order []place.Usage
	borrowed := map[string]int64{}
	for _, u := range usages {
		preempts, reclaims := b.mayPreempt(&u, key, priority), owed && b.mayReclaim(&u, key, queue)
		if reclaims && !preempts {
			borrowed[u.Queue] = b.borrows(u.Queue)
		}
		if preempts || reclaims {
			order = append(order, u)
		}
	}
	slices.SortFunc(order, func(x, y place.Usage) int { return b.compareVictims(&x, &y) })
	for _, u := range order {
		if !b.mayPreempt(&u, key, priority) {
			if borrowed[u.Queue] <= 0 {
				continue
			}
			borrowed[u.Queue] -= chargeOf(n, u.Takes).Milli
			o.reclaim = true
		}
		r.take(n, &u, -1)
		o.victims = append(o.victims, u)
		if r.serve(n, g.Ask.CPUMHz, g.Ask.MemoryMiB, g.Blocks) {
			o.giveBack(n, r, g)
			return o
		}
	}
	return nil
}

// giveBack keeps as victims only what is needed, sparing the dearest first.
func (o *option) giveBack(n *nomad.Node, r room, g *GroupRecord) {
	for i := len(o.victims) - 1; i >= 0; i-- {
		r.take(n, &o.victims[i], 1)
		if r.serve(n, g.Ask.CPUMHz, g.Ask.MemoryMiB, g.Blocks) {
			o.victims = slices.Delete(o.victims, i, i+1)
			continue
		}
		r.take(n, &o.victims[i], -1)
	}
}

// evictable is what holds of any victim, whatever the ground.
func (b *Book) evictable(u *place.Usage, key nomad.JobKey) *nomad.Alloc {
	a := b.allocs[u.ID]
	if a == nil || a.Stopping || len(u.Takes) == 0 || u.Pinned || a.Key() == key || b.now().Before(u.Start.Add(u.MinRun)) {
		return nil
	}
	if j := b.jobs[a.Key()]; j == nil || j.Type != "service" && j.Type != "batch" {
		return nil // the allocs of system jobs come back at once
	}
	return a
}

func (b *Book) mayPreempt(u *place.Usage, key nomad.JobKey, priority int) bool {
	if b.evictable(u, key) == nil {
		return false
	}
	if q := b.config.Queue(u.Queue); q != nil && q.Protected {
		return false
	}
	return u.Priority+b.config.Preemption.MinGap <= priority
}

func (b *Book) mayReclaim(u *place.Usage, key nomad.JobKey, queue string) bool {
	return u.Queue != queue && b.evictable(u, key) != nil && b.borrows(u.Queue) > 0
}

// compareVictims says who goes first.
func (b *Book) compareVictims(x, y *place.Usage) int {
	return cmp.Or(x.Priority-y.Priority, cmp.Compare(b.lost(x), b.lost(y)), strings.Compare(x.ID, y.ID))
}

// lost is the work that an eviction throws away: compute times seconds.
func (b *Book) lost(u *place.Usage) int64 {
	var milli int64
	for _, t := range u.Takes {
		milli += max(1, t.Milli)
	}
	return milli * int64(max(0, b.now().Sub(u.Start))/time.Second)
}

func (b *Book) compareOptions(x, y *option) int {
	top := func(o *option) int {
		most := 0
		for _, u := range o.victims {
			most = max(most, u.Priority)
		}
		return most
	}
	work := func(o *option) int64 {
		var sum int64
		for i := range o.victims {
			sum += b.lost(&o.victims[i])
		}
		return sum
	}
	return cmp.Or(top(x)-top(y), len(x.victims)-len(y.victims), cmp.Compare(work(x), work(y)), strings.Compare(x.node, y.node))
}

func (b *Book) eviction(key nomad.JobKey, g *GroupRecord, o *option, priority int, queue string) *Eviction {
	e := &Eviction{For: key, Group: g.Ask.Group, Node: o.node, Reclaim: o.reclaim}
	var who []string
	for _, u := range o.victims {
		a := b.allocs[u.ID]
		e.Victims = append(e.Victims, Victim{AllocID: u.ID, Job: a.Key(), Group: a.Group, Priority: u.Priority, Queue: u.Queue})
		who = append(who, fmt.Sprintf("%s (priority %d, alloc %.8s)", a.Key(), u.Priority, u.ID))
	}
	why := fmt.Sprintf("has priority %d and finds no room for %s", priority, g.Ask)
	if o.reclaim {
		why = fmt.Sprintf("takes back what was borrowed from queue %s, for %s", queue, g.Ask)
	}
	e.Text = fmt.Sprintf("%s must leave node %s: job %s %s", strings.Join(who, ", "), b.nodes[o.node].Plan.Name, key, why)
	return e
}
