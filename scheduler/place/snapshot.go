package place

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// gpuMilli is the compute of one GPU.
const gpuMilli = 1000

// Limits of what is planned for. A node with 8 GPUs cut into 7 MIG instances
// each has 56.
const (
	maxGPUs   = forecast.MaxGPUs
	maxSlices = 1 << 20
)

// ErrCapacity is wrapped by errors about usage that does not fit.
var ErrCapacity = errors.New("over capacity")

// Snapshot is a view of the cluster that is updated in place. It is not safe
// for concurrent use.
type Snapshot struct {
	nodes  map[string]*nodeState
	usages map[string]*Usage
	jobs   map[jobName][]*Usage // those that name one
	pools  []*gpuPool           // by pool ID; nil where a node was removed
	spare  []int32              // pool IDs to use again
	kinds  []kind
	kindID map[kind]int32
	stock  []stock // per kind
	groups map[nodeGroup]int32
	each   classList    // every pool a class of its own
	states stateClasses // pools by state
	ledger quota.Ledger // what queues hold

	evictables []evictable // by pool ID, for evictions
	ranks      map[int]int // how many usages have each priority
	// seatBounds is on how many GPUs seats have which highest priority.
	seatBounds map[int]int
	// reclaimable is how many usages may be evicted since they do not use their GPUs.
	reclaimable int
}

// nodeState is a node with what is free on it.
type nodeState struct {
	spec    Node
	cpu     int64 // MHz free
	memory  int64 // MiB free
	group   int32 // of Snapshot.groups
	pools   []*gpuPool
	where   []poolGPU // per GPU: its pool and place in it
	holders []*Usage  // by ID
}

// jobName is what a usage is of.
type jobName struct{ namespace, job string }

// nodeGroup is the nodes that a request may ask for without naming any.
type nodeGroup struct{ datacenter, pool string }

type poolGPU struct {
	pool  *gpuPool
	index int // in pool.gpus
}

// NewSnapshot returns an empty cluster.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		nodes: map[string]*nodeState{}, usages: map[string]*Usage{}, jobs: map[jobName][]*Usage{}, ranks: map[int]int{}, seatBounds: map[int]int{},
		kindID: map[kind]int32{}, groups: map[nodeGroup]int32{}, each: classList{ordered: true}, states: stateClasses{ids: map[classKey]int32{}},
	}
}

// AddNode adds a node without usage. Its place in ties is after the nodes
// already there, or that of a removed node.
func (s *Snapshot) AddNode(spec Node) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if s.nodes[spec.ID] != nil {
		return fmt.Errorf("add node %q: already there", spec.ID)
	}
	n := &nodeState{spec: spec, cpu: spec.CPUMHz, memory: spec.MemoryMiB, group: s.groupOf(&spec)}
	n.pools = newPools(n, s.intern)
	n.where = make([]poolGPU, len(spec.GPUs))
	for _, b := range n.pools {
		for i, g := range b.positions {
			n.where[g] = poolGPU{b, i}
		}
		s.adopt(b)
	}
	s.nodes[spec.ID] = n
	s.countSeats(&n.spec, 1)
	s.setEvictables(n)
	return nil
}

// RemoveNode takes a node away and returns the usage that was on it, by ID.
func (s *Snapshot) RemoveNode(id string) ([]Usage, error) {
	n := s.nodes[id]
	if n == nil {
		return nil, fmt.Errorf("remove node %q: not there", id)
	}
	var gone []Usage
	for len(n.holders) > 0 {
		u, err := s.Release(n.holders[0].ID)
		if err != nil {
			return nil, err
		}
		gone = append(gone, u)
	}
	for _, b := range slices.Backward(n.pools) {
		s.disown(b) // backward, so that IDs come back in the same order
	}
	s.countSeats(&n.spec, -1)
	delete(s.nodes, id)
	return gone, nil
}

// UpdateNode replaces a node's description (health, cordon, capacity, GPUs)
// and keeps its usage. Usage of GPUs that are gone is dropped from its takes;
// capacity may then be exceeded, as it is in reality.
func (s *Snapshot) UpdateNode(spec Node) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	old := s.nodes[spec.ID]
	if old == nil {
		return fmt.Errorf("update node %q: not there", spec.ID)
	}
	was := old.spec
	held, err := s.RemoveNode(spec.ID)
	if err != nil {
		return err
	}
	if err := s.AddNode(spec); err != nil {
		return err
	}
	for _, u := range held {
		u.Takes = remap(u.Takes, was.GPUs, spec.GPUs)
		if err := s.Observe(u); err != nil {
			return err
		}
	}
	return nil
}

// remap translates takes from one list of GPUs to another by GPU ID.
func remap(takes []Take, from, to []GPU) []Take {
	var out []Take
	for _, t := range takes {
		at := slices.IndexFunc(to, func(g GPU) bool { return g.ID == from[t.GPU].ID })
		if at >= 0 {
			t.GPU = at
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Take) int { return a.GPU - b.GPU })
	return out
}

// groupOf numbers the groups of nodes in order of first appearance.
func (s *Snapshot) groupOf(n *Node) int32 {
	g := nodeGroup{n.Datacenter, n.Pool}
	id, ok := s.groups[g]
	if !ok {
		id = int32(len(s.groups))
		s.groups[g] = id
	}
	return id
}

func (s *Snapshot) intern(k kind) int32 {
	id, ok := s.kindID[k]
	if !ok {
		id = int32(len(s.kinds))
		s.kinds = append(s.kinds, k)
		s.stock = append(s.stock, stock{idle: map[int32]int{}})
		s.kindID[k] = id
	}
	return id
}

func (s *Snapshot) adopt(b *gpuPool) {
	if last := len(s.spare) - 1; last >= 0 {
		b.id = s.spare[last]
		s.spare = s.spare[:last]
		s.pools[b.id] = b
	} else {
		b.id = int32(len(s.pools))
		s.pools = append(s.pools, b)
		s.evictables = append(s.evictables, evictable{})
		s.each.classes, s.each.first = append(s.each.classes, poolClass{}), append(s.each.first, b.id)
	}
	s.each.classes[b.id].pools = []int32{b.id}
	if b.kind >= 0 {
		s.stock[b.kind].add(b)
	}
	s.touch(b)
}

func (s *Snapshot) disown(b *gpuPool) {
	if b.kind >= 0 {
		s.stock[b.kind].remove(b)
	}
	s.pools[b.id] = nil
	s.evictables[b.id] = evictable{}
	s.spare = append(s.spare, b.id)
	s.each.classes[b.id].pools = nil
	s.each.renew(b.id, b)
	s.states.remove(b)
}

// touch brings what is derived from a pool up to date and logs the change.
func (s *Snapshot) touch(b *gpuPool) {
	if b.kind >= 0 {
		st := &s.stock[b.kind]
		st.free -= b.free
		st.idle[b.idle]--
		b.refresh(&s.kinds[b.kind])
		st.free += b.free
		st.idle[b.idle]++
	}
	s.each.renew(b.id, b)
	s.states.put(b)
}
