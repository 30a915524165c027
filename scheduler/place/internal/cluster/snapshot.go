// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// GPUMilli is the compute of one GPU.
const GPUMilli = 1000

// Limits of planning. A node with 8 GPUs cut into 7 MIG instances
// each has 56.
const (
	MaxGPUs   = forecast.MaxGPUs
	MaxSlices = 1 << 20
)

// ErrCapacity is wrapped by errors about usage that does not fit.
var ErrCapacity = errors.New("over capacity")

// Snapshot is a view of the cluster that is updated in place. It is not safe
// for concurrent use.
type Snapshot struct {
	Nodes  map[string]*NodeState
	Usages map[string]*Usage
	jobs   map[jobName][]*Usage // those that name one
	Pools  []*Pool              // by pool ID; nil where a node was removed
	spare  []int32              // pool IDs to use again
	Kinds  []Kind
	kindID map[Kind]int32
	Stock  []stock // per kind
	groups map[nodeGroup]int32
	Each   Classes      // every pool a class of its own
	States stateClasses // pools by state
	Ledger quota.Ledger // what queues hold

	Evictables []Evictable // by pool ID, for evictions
	Priorities map[int]int // how many usages have each priority
	// seatBounds is on how many GPUs seats have which highest priority.
	seatBounds map[int]int
	// reclaimable is how many usages may be evicted since they do not use their GPUs.
	reclaimable int
	inUse       inUse
}

// NodeState is a node with its free capacity.
type NodeState struct {
	Spec    Node
	CPU     int64 // MHz free
	Memory  int64 // MiB free
	group   int32 // of Snapshot.groups
	Pools   []*Pool
	Where   []poolGPU // per GPU: its pool and place in it
	Holders []*Usage  // by ID
}

// jobName is what a usage is of.
type jobName struct{ namespace, job string }

// nodeGroup is the nodes that a request may ask for without naming any.
type nodeGroup struct{ datacenter, pool string }

type poolGPU struct {
	Pool  *Pool
	Index int // in pool.gpus
}

// NewSnapshot returns an empty cluster.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Nodes: map[string]*NodeState{}, Usages: map[string]*Usage{}, jobs: map[jobName][]*Usage{}, Priorities: map[int]int{}, seatBounds: map[int]int{},
		kindID: map[Kind]int32{}, groups: map[nodeGroup]int32{}, Each: Classes{Ordered: true}, States: stateClasses{ids: map[classKey]int32{}},
	}
}

// AddNode adds a node without usage. Its place in ties is after the nodes
// already there, or that of a removed node.
func (s *Snapshot) AddNode(spec Node) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if s.Nodes[spec.ID] != nil {
		return fmt.Errorf("add node %q: already there", spec.ID)
	}
	n := &NodeState{Spec: spec, CPU: spec.CPUMHz, Memory: spec.MemoryMiB, group: s.groupOf(&spec)}
	n.Pools = newPools(n, s.intern)
	n.Where = make([]poolGPU, len(spec.GPUs))
	for _, b := range n.Pools {
		for i, g := range b.Positions {
			n.Where[g] = poolGPU{b, i}
		}
		s.adopt(b)
	}
	s.Nodes[spec.ID] = n
	s.countSeats(&n.Spec, 1)
	s.countNode(n, 1)
	s.setEvictables(n)
	return nil
}

// RemoveNode takes a node away and returns the usage that was on it, by ID.
func (s *Snapshot) RemoveNode(id string) ([]Usage, error) {
	n := s.Nodes[id]
	if n == nil {
		return nil, fmt.Errorf("remove node %q: not there", id)
	}
	var gone []Usage
	for len(n.Holders) > 0 {
		u, err := s.Release(n.Holders[0].ID)
		if err != nil {
			return nil, err
		}
		gone = append(gone, u)
	}
	for _, b := range slices.Backward(n.Pools) {
		s.disown(b) // backward, so that IDs come back in the same order
	}
	s.countSeats(&n.Spec, -1)
	s.countNode(n, -1)
	delete(s.Nodes, id)
	return gone, nil
}

// UpdateNode replaces a node's description (health, cordon, capacity, GPUs)
// and keeps its usage. Usage of GPUs that are gone is dropped from its takes;
// capacity may then be exceeded, as it is in reality.
func (s *Snapshot) UpdateNode(spec Node) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	old := s.Nodes[spec.ID]
	if old == nil {
		return fmt.Errorf("update node %q: not there", spec.ID)
	}
	was := old.Spec
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

func (s *Snapshot) intern(k Kind) int32 {
	id, ok := s.kindID[k]
	if !ok {
		id = int32(len(s.Kinds))
		s.Kinds = append(s.Kinds, k)
		s.Stock = append(s.Stock, stock{idle: map[int32]int{}})
		s.kindID[k] = id
	}
	return id
}

func (s *Snapshot) adopt(b *Pool) {
	if last := len(s.spare) - 1; last >= 0 {
		b.ID = s.spare[last]
		s.spare = s.spare[:last]
		s.Pools[b.ID] = b
	} else {
		b.ID = int32(len(s.Pools))
		s.Pools = append(s.Pools, b)
		s.Evictables = append(s.Evictables, Evictable{})
		s.Each.List, s.Each.First = append(s.Each.List, Class{}), append(s.Each.First, b.ID)
	}
	s.Each.List[b.ID].Pools = []int32{b.ID}
	if b.Kind >= 0 {
		s.Stock[b.Kind].add(b)
	}
	s.touch(b)
}

func (s *Snapshot) disown(b *Pool) {
	if b.Kind >= 0 {
		s.Stock[b.Kind].remove(b)
	}
	if b.Node.counts() {
		s.inUse.used -= b.Used
	}
	s.Pools[b.ID] = nil
	s.Evictables[b.ID] = Evictable{}
	s.spare = append(s.spare, b.ID)
	s.Each.List[b.ID].Pools = nil
	s.Each.renew(b.ID, b)
	s.States.remove(b)
}

// touch brings the values derived from a pool up to date and logs the change.
func (s *Snapshot) touch(b *Pool) {
	if b.Kind >= 0 {
		st := &s.Stock[b.Kind]
		st.Free -= b.Free
		st.idle[b.Idle]--
		was := b.Used
		b.refresh(&s.Kinds[b.Kind])
		if b.Node.counts() {
			s.inUse.used += b.Used - was
		}
		st.Free += b.Free
		st.idle[b.Idle]++
	}
	s.Each.renew(b.ID, b)
	s.States.put(b)
}
