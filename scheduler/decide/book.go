package decide

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Book is what the service believes of the cluster: what Nomad showed, and
// what was promised since. Its methods may be used by many goroutines.
type Book struct {
	now func() time.Time

	mu      sync.Mutex
	config  *config.Config
	index   uint64           // Nomad's, of the last change
	synced  time.Time        // when Nomad was last heard; zero: never
	blind   error            // why Nomad cannot be heard
	version uint64           // grows with every change
	epoch   uint64           // grows with every change of what fits where
	tried   map[string]trial // what was looked for in vain, by name

	nodes   map[string]*nomad.Node
	allocs  map[string]*nomad.Alloc
	jobs    map[nomad.JobKey]*nomad.Job
	blocked map[nomad.JobKey]*nomad.Blocked
	flights map[string]*flight
	futile  map[string]bool // groups that no eviction would help: job/group
	claims  map[string]*Reservation

	order  []string // the nodes' IDs, in order
	byJob  map[nomad.JobKey]map[string]*nomad.Alloc
	snap   *place.Snapshot
	plan   *place.Planner
	quotas *place.Quotas   // nil without queues
	empty  *place.Snapshot // the same nodes with nothing on them
	ideal  *place.Planner  // plans on empty: what could ever fit

	measured map[string]nomad.Measurements // node → GPUs
	records  map[nomad.JobKey]*Record      // as far as read
	drift    map[nomad.JobKey]bool         // jobs that are not registered as recorded
	gone     []nomad.JobKey                // jobs that left, whose records can go
	log      diary
	untold   []view.Event // for the audit log
	evicted  map[nomad.JobKey][]time.Time
	saved    stored // where the history lies
	unsaved  bool   // something was done since
}

// NewBook returns a book that knows nothing yet.
func NewBook(c *config.Config, now func() time.Time) *Book {
	b := &Book{
		now: now, config: c, nodes: map[string]*nomad.Node{}, allocs: map[string]*nomad.Alloc{},
		jobs: map[nomad.JobKey]*nomad.Job{}, blocked: map[nomad.JobKey]*nomad.Blocked{},
		flights: map[string]*flight{}, futile: map[string]bool{}, claims: map[string]*Reservation{},
		byJob: map[nomad.JobKey]map[string]*nomad.Alloc{},
		snap:  place.NewSnapshot(), empty: place.NewSnapshot(),
		measured: map[string]nomad.Measurements{}, records: map[nomad.JobKey]*Record{}, drift: map[nomad.JobKey]bool{}, tried: map[string]trial{},
		evicted: map[nomad.JobKey][]time.Time{},
	}
	b.planAnew()
	return b
}

// planAnew makes planners with the present configuration.
func (b *Book) planAnew() {
	b.plan = place.NewPlanner(b.snap, b.config.Placement.Policy, b.config.Placement.Weights)
	b.plan.ExpectEnds()
	b.ideal = place.NewPlanner(b.empty, place.PolicyPack, b.config.Placement.Weights)
	b.setQuotas()
}

// Configure replaces the configuration.
func (b *Book) Configure(c *config.Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := b.config.Placement != c.Placement
	b.config = c
	if changed {
		b.planAnew()
		b.learn()
	}
	b.setQuotas()
	b.requeue()
	b.version++
	b.epoch++
}

// Heard notes that Nomad has spoken.
func (b *Book) Heard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.synced, b.blind = b.now(), nil
}

// Synced is when Nomad was last heard.
func (b *Book) Synced() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.synced
}

// Lost notes why Nomad cannot be heard.
func (b *Book) Lost(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blind = err
}

// Version grows with every change, so that a reader sees whether it must look
// again.
func (b *Book) Version() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version
}

// Apply takes changes from Nomad: nodes first, because usage needs them.
func (b *Book) Apply(changes []nomad.Change, index uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range changes {
		switch {
		case c.Node != nil:
			b.node(c.Node)
		case c.NodeGone != "":
			b.nodeGone(c.NodeGone)
		}
	}
	for _, c := range changes {
		b.applyWork(c)
	}
	b.index = max(b.index, index)
	b.version++
	b.epoch++
}

func (b *Book) applyWork(c nomad.Change) {
	switch {
	case c.Job != nil:
		b.job(c.Job)
	case c.JobGone != nil:
		b.jobGone(*c.JobGone)
	case c.Alloc != nil && c.Alloc.Holds():
		b.alloc(c.Alloc)
	case c.Alloc != nil:
		b.allocGone(c.Alloc.ID)
	case c.AllocGone != "":
		b.allocGone(c.AllocGone)
	case c.Blocked != nil:
		b.blocked[c.Blocked.Key] = c.Blocked
		b.fall(c.Blocked)
	case c.Unblocked != nil:
		delete(b.blocked, *c.Unblocked)
		b.forgetFutile(*c.Unblocked)
	}
}

// node takes a node and books again what lies on it: positions of GPUs may
// have changed.
func (b *Book) node(n *nomad.Node) {
	id := n.Plan.ID
	known := b.nodes[id] != nil
	held := b.snap.UsagesOn(id)
	for _, u := range held {
		b.unbook(u.ID)
	}
	b.forgetNode(id)
	n = b.withMeasurements(n)
	ideal := n.Plan
	ideal.Ineligible, ideal.GPUs = false, healthy(n.Plan.GPUs)
	if err := errors.Join(b.snap.AddNode(n.Plan), b.empty.AddNode(ideal)); err != nil {
		b.log.trouble(b.now(), err)
		b.forgetNode(id)
		return
	}
	if at, found := slices.BinarySearch(b.order, id); !found {
		b.order = slices.Insert(slices.Clone(b.order), at, id)
	}
	b.nodes[id] = n
	for _, u := range held {
		b.rebook(u.ID)
	}
	if known {
		return
	}
	for _, a := range b.allocs {
		if a.NodeID == id {
			b.book(b.usageOf(a))
		}
	}
	for _, r := range b.claims {
		if r.Usage.NodeID == id && r.ClaimedBy == "" {
			b.book(r.Usage)
		}
	}
}

// rebook enters again what a usage ID stands for.
func (b *Book) rebook(id string) {
	switch {
	case b.flights[id] != nil:
		b.book(b.flights[id].usage)
	case b.allocs[id] != nil:
		b.book(b.usageOf(b.allocs[id]))
	case b.claims[id] != nil:
		b.book(b.claims[id].Usage)
	}
}

// healthy is the GPUs as they would be with nothing wrong.
func healthy(gpus []place.GPU) []place.GPU {
	out := slices.Clone(gpus)
	for i := range out {
		out[i].Unhealthy, out[i].Cordoned = false, false
	}
	return out
}

func (b *Book) nodeGone(id string) {
	for _, u := range b.snap.UsagesOn(id) {
		b.unbook(u.ID)
	}
	b.forgetNode(id)
}

// forgetNode removes a node that nothing is booked on, if it is there.
func (b *Book) forgetNode(id string) {
	if b.nodes[id] == nil {
		return
	}
	delete(b.nodes, id)
	if at, found := slices.BinarySearch(b.order, id); found {
		b.order = slices.Delete(slices.Clone(b.order), at, at+1)
	}
	_, errSnap := b.snap.RemoveNode(id)
	_, errEmpty := b.empty.RemoveNode(id)
	if err := errors.Join(errSnap, errEmpty); err != nil {
		b.log.trouble(b.now(), err)
	}
}

// job takes a job; what its allocs count for may be different now.
func (b *Book) job(j *nomad.Job) {
	before := b.jobs[j.Key]
	b.jobs[j.Key] = j
	b.compare(j.Key)
	if j.Stopped {
		b.dropFlights(j.Key)
	}
	if !j.GPU || before != nil && before.Index == j.Index {
		return
	}
	for _, a := range b.allocsOf(j.Key) {
		b.unbook(a.ID)
		b.book(b.usageOf(a))
	}
}

// jobGone takes a purged job and its allocs off the book.
func (b *Book) jobGone(key nomad.JobKey) {
	delete(b.jobs, key)
	delete(b.blocked, key)
	delete(b.drift, key)
	b.forgetTrials(key)
	for _, a := range b.allocsOf(key) {
		b.allocGone(a.ID)
	}
	b.forgetFutile(key)
	b.dropFlights(key)
	b.gone = append(b.gone, key)
}

func (b *Book) alloc(a *nomad.Alloc) {
	before := b.allocs[a.ID]
	b.allocs[a.ID] = a
	if b.byJob[a.Key()] == nil {
		b.byJob[a.Key()] = map[string]*nomad.Alloc{}
	}
	b.byJob[a.Key()][a.ID] = a
	if a.Canary != (before != nil && before.Canary) {
		defer b.rebookGroup(a)
	}
	if before == nil {
		b.plan.Started()
		b.land(a)
		b.book(b.usageOf(a))
		return
	}
	if before.Stopping != a.Stopping || len(before.Devices) != len(a.Devices) || before.CPUMHz != a.CPUMHz || before.MemoryMiB != a.MemoryMiB {
		b.unbook(a.ID)
		b.book(b.usageOf(a))
	}
}

func (b *Book) allocGone(id string) {
	a := b.allocs[id]
	if a == nil {
		return
	}
	b.plan.Ended()
	delete(b.allocs, id)
	delete(b.byJob[a.Key()], id)
	if len(b.byJob[a.Key()]) == 0 {
		delete(b.byJob, a.Key())
	}
	b.unbook(id)
	if a.Canary {
		b.rebookGroup(a)
	}
}

// rebookGroup books the siblings of an alloc again: who may be evicted is
// different now.
func (b *Book) rebookGroup(of *nomad.Alloc) {
	for _, a := range b.byJob[of.Key()] {
		if a.Group == of.Group {
			b.unbook(a.ID)
			b.book(b.usageOf(a))
		}
	}
}

// book enters a usage that is a fact or a promise.
func (b *Book) book(u place.Usage) {
	if b.nodes[u.NodeID] == nil {
		return // it is booked once the node is known
	}
	b.epoch++
	if err := b.snap.Observe(u); err != nil {
		b.log.trouble(b.now(), err)
	}
}

func (b *Book) unbook(id string) {
	if _, booked := b.snap.Usage(id); !booked {
		return
	}
	b.epoch++
	if _, err := b.snap.Release(id); err != nil {
		b.log.trouble(b.now(), err)
	}
}

// live counts the allocs of a group that run or are about to.
func (b *Book) live(key nomad.JobKey, group string) int {
	n := 0
	for _, a := range b.byJob[key] {
		if a.Group == group && !a.Stopping {
			n++
		}
	}
	return n
}
