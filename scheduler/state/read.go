package state

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// Node is a node by its ID; nil: there is none.
func (r *Reader) Node(id string) *nomad.Node { return r.nodes[id] }

// NodeIDs lists all nodes, in order. The list must not be changed, nor kept.
func (r *Reader) NodeIDs() []string { return r.order }

// Datacenters lists those that have nodes, in order.
func (r *Reader) Datacenters() []string { return slices.Sorted(maps.Keys(r.dcs)) }

// EveryNodeMeets reports whether no node with GPUs is ruled out by a constraint.
func (r *Reader) EveryNodeMeets(c constraint.Constraint) bool {
	met, known := r.met[c]
	if !known {
		met = true
		for _, n := range r.nodes {
			met = met && (len(n.Plan.GPUs) == 0 || c.OnNode(n.Plan.Attributes))
		}
		r.met[c] = met
	}
	return met
}

// Job is a job as it is registered; nil: there is none.
func (r *Reader) Job(key nomad.JobKey) *nomad.Job { return r.jobs[key] }

// Alloc is an alloc that holds something of its node; nil: there is none.
func (r *Reader) Alloc(id string) *nomad.Alloc { return r.allocs[id] }

// Allocs are all allocs, in no order.
func (r *Reader) Allocs() iter.Seq[*nomad.Alloc] { return maps.Values(r.allocs) }

// AllocsOn are the allocs on a node, in no order.
func (r *Reader) AllocsOn(node string) iter.Seq[*nomad.Alloc] { return maps.Values(r.onNode[node]) }

const (
	// longestStop is after how long an alloc that is to end is not waited for any more: its
	// client may hang, or its processes in the kernel.
	longestStop = 30 * time.Minute
	// Lingering is for how long an alloc that is to end counts as gone where another has
	// started in its place.
	Lingering = time.Minute
	// killing is how much longer than its job says an alloc may take to end.
	killing = 5 * time.Minute
)

// longestStop is the same for one alloc, whose job may say that it takes longer.
func (r *Reader) longestStop(a *nomad.Alloc) time.Duration {
	if j := r.jobs[a.Key()]; j != nil {
		if g := j.Group(a.Group); g != nil {
			return max(longestStop, g.StopTime+killing)
		}
	}
	return longestStop
}

// Stopping are the allocs that are about to end, in no order.
func (r *Reader) Stopping() iter.Seq[*nomad.Alloc] {
	return func(yield func(*nomad.Alloc) bool) {
		for id, since := range r.stopping {
			if a := r.allocs[id]; r.now().Sub(since) < r.longestStop(a) && !yield(a) {
				return
			}
		}
	}
}

// Lingers reports whether an alloc that is to end has been so for longer than work
// usually takes. What Nomad started in its place then counts beside it.
func (r *Reader) Lingers(a *nomad.Alloc) bool {
	return a.Stopping && r.now().Sub(r.stopping[a.ID]) >= Lingering
}

// Lingering are the allocs that linger, in no order.
func (r *Reader) Lingering() iter.Seq[*nomad.Alloc] {
	return func(yield func(*nomad.Alloc) bool) {
		for id := range r.stopping {
			if a := r.allocs[id]; r.Lingers(a) && len(a.Devices) > 0 && !yield(a) {
				return
			}
		}
	}
}

// AllocsOf are the allocs of a job, in no order.
func (r *Reader) AllocsOf(key nomad.JobKey) []*nomad.Alloc {
	return slices.Collect(maps.Values(r.byJob[key]))
}

// Live counts the allocs of a group that run or are about to.
func (r *Reader) Live(key nomad.JobKey, group string) int {
	n := 0
	for _, a := range r.byJob[key] {
		if a.Group == group && !a.Stopping {
			n++
		}
	}
	return n
}

// Blocked is what Nomad cannot place of a job; nil: nothing.
func (r *Reader) Blocked(key nomad.JobKey) *nomad.Blocked { return r.blocked[key] }

// Missing is how many allocs of a group Nomad cannot place.
func (r *Reader) Missing(key nomad.JobKey, group string) int {
	if b := r.blocked[key]; b != nil {
		return b.Missing[group]
	}
	return 0
}

// Queued is the place of a job in Nomad's own order of those with the same priority: the
// index of its evaluation. A job without one comes last.
func (r *Reader) Queued(key nomad.JobKey) uint64 {
	if b := r.blocked[key]; b != nil {
		return b.Queued
	}
	return math.MaxUint64
}

// Record is what was decided about a job; nil: nothing that is known. It must not
// be changed.
func (r *Reader) Record(key nomad.JobKey) *record.Record { return r.records[key] }

// Recorded lists the jobs that have a record, in order.
func (r *Reader) Recorded() []nomad.JobKey {
	return slices.SortedFunc(maps.Keys(r.records), CompareKeys)
}

// CompareKeys orders jobs by namespace, then ID.
func CompareKeys(x, y nomad.JobKey) int {
	return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.ID, y.ID))
}

// Snapshot is the cluster with everything that is held or promised. Whoever changes
// it puts it back before the transaction ends.
func (tx *Tx) Snapshot() *place.Snapshot { return tx.snap }

// Idle is the same nodes with nothing on them and nothing wrong: what could ever
// fit.
func (tx *Tx) Idle() *place.Snapshot { return tx.idle }

// Planner plans on the snapshot.
func (tx *Tx) Planner() *place.Planner { return tx.plan }

// IdlePlanner plans on the idle cluster.
func (tx *Tx) IdlePlanner() *place.Planner { return tx.idlePlan }

// Usage is what is booked under an ID.
func (r *Reader) Usage(id string) (place.Usage, bool) { return r.snap.Usage(id) }

// UsagesOn lists what is booked on a node.
func (r *Reader) UsagesOn(node string) []place.Usage { return r.snap.UsagesOn(node) }

// Charge is what a queue pays for GPUs of a node.
func (r *Reader) Charge(node string, takes []place.Take) place.Charge {
	return r.snap.Charge(node, takes)
}

// Need is what a group whose device blocks stand asks of a node, and what one of
// its allocs needs there.
type Need struct {
	Node  place.Request // only what bounds the node
	Alloc place.Blocks
}

// Times is what so many allocs need together on one node.
func (n *Need) Times(allocs int) *Need {
	all := Need{Node: n.Node, Alloc: n.Alloc}
	all.Alloc.CPUMHz, all.Alloc.MemoryMiB = n.Alloc.CPUMHz*int64(allocs), n.Alloc.MemoryMiB*int64(allocs)
	all.Alloc.Devices = slices.Repeat(n.Alloc.Devices, allocs)
	return &all
}

// Admits reports whether a group may run on a node at all.
func (r *Reader) Admits(node string, n *Need) bool {
	known := r.nodes[node]
	return known != nil && n.Node.AdmittedBy(&known.Plan)
}

// Serves reports whether a node has room for an alloc, whether it takes work or
// not. What without selects counts as gone.
func (r *Reader) Serves(node string, n *Need, without func(*place.Usage) bool) bool {
	return r.snap.Serves(node, &n.Alloc, without)
}

// ServesNow reports whether a node takes work, may run a group and has room for an
// alloc of it. What without selects counts as gone.
func (r *Reader) ServesNow(node string, n *Need, without func(*place.Usage) bool) bool {
	known := r.nodes[node]
	return known != nil && !known.Plan.Ineligible && r.Admits(node, n) && r.Serves(node, n, without)
}

// CouldServe reports whether a node could take an alloc if it was empty.
func (r *Reader) CouldServe(node string, n *Need) bool {
	return r.Admits(node, n) && r.Serves(node, n, place.Everything)
}
