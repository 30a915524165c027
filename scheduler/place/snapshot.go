package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// gpuMilli is the compute of one GPU.
const gpuMilli = 1000

// Limits of what is planned for. A node with 8 GPUs cut into 7 MIG instances
// each has 56.
const (
	maxGPUs   = 64
	maxSlices = 1 << 20
)

// ErrCapacity is wrapped by errors about usage that does not fit.
var ErrCapacity = errors.New("over capacity")

// Snapshot is a view of the cluster that is updated in place. It is not safe
// for concurrent use.
type Snapshot struct {
	nodes  map[string]*nodeState
	usages map[string]*Usage
	banks  []*bank // by bank ID; nil where a node was removed
	lows   []low   // by bank ID: of its node
	spare  []int32 // bank IDs to use again
	kinds  []kind
	kindID map[kind]int32
	stock  []stock // per kind
	log    changeLog
	queues map[string]int64 // GPU milli held per queue, for quotas

	byQueue map[string][]*Usage // in order of booking
	booked  int64               // number of bookings so far
}

// nodeState is a node with what is free on it.
type nodeState struct {
	spec    Node
	cpu     int64 // MHz free
	memory  int64 // MiB free
	banks   []*bank
	where   []spot   // per GPU: its bank and cell
	holders []*Usage // by ID
}

// low is the lowest priority that holds something on a node, and how much GPU
// it holds.
type low struct {
	held     bool // by anybody
	priority int
	milli    int64
}

type spot struct {
	bank *bank
	cell int
}

// stock sums up the banks of one kind.
type stock struct {
	gpus int64
	free int64         // usable milli
	idle map[int32]int // number of banks by count of idle GPUs
}

// NewSnapshot returns an empty cluster.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		nodes: map[string]*nodeState{}, usages: map[string]*Usage{},
		kindID: map[kind]int32{}, queues: map[string]int64{}, byQueue: map[string][]*Usage{},
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
	n := &nodeState{spec: spec, cpu: spec.CPUMHz, memory: spec.MemoryMiB}
	n.banks = newBanks(n, s.intern)
	n.where = make([]spot, len(spec.GPUs))
	for _, b := range n.banks {
		for i, g := range b.gpus {
			n.where[g] = spot{b, i}
		}
		s.adopt(b)
	}
	s.nodes[spec.ID] = n
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
	for _, b := range slices.Backward(n.banks) {
		s.disown(b) // backward, so that IDs come back in the same order
	}
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

// Apply books a usage. It fails with ErrCapacity, and changes nothing, when
// the node cannot hold it.
func (s *Snapshot) Apply(u Usage) error {
	n, err := s.check(&u)
	if err != nil {
		return err
	}
	if err := n.fits(&u); err != nil {
		return fmt.Errorf("apply usage %q: %w", u.ID, err)
	}
	s.book(n, &u)
	return nil
}

// Observe books a usage that is a fact, such as an alloc that Nomad runs, even
// where it exceeds what the node has.
func (s *Snapshot) Observe(u Usage) error {
	n, err := s.check(&u)
	if err != nil {
		return err
	}
	s.book(n, &u)
	return nil
}

// Release frees a usage and returns it. Releasing and applying again restores
// the snapshot exactly.
func (s *Snapshot) Release(id string) (Usage, error) {
	u := s.usages[id]
	if u == nil {
		return Usage{}, fmt.Errorf("release usage %q: not there", id)
	}
	n := s.nodes[u.NodeID]
	s.move(n, u, -1)
	at, _ := slices.BinarySearchFunc(n.holders, id, byUsageID)
	n.holders = slices.Delete(n.holders, at, at+1)
	s.setLow(n)
	delete(s.usages, id)
	s.dequeue(u)
	return *u, nil
}

func (s *Snapshot) check(u *Usage) (*nodeState, error) {
	n := s.nodes[u.NodeID]
	if n == nil {
		return nil, fmt.Errorf("apply usage %q: no node %q", u.ID, u.NodeID)
	}
	if s.usages[u.ID] != nil {
		return nil, fmt.Errorf("apply usage %q: already there", u.ID)
	}
	if u.CPUMHz < 0 || u.MemoryMiB < 0 {
		return nil, fmt.Errorf("apply usage %q: negative CPU or memory", u.ID)
	}
	last := -1
	for _, t := range u.Takes {
		if t.GPU <= last || t.GPU >= len(n.spec.GPUs) {
			return nil, fmt.Errorf("apply usage %q: GPU %d not on node %q or out of order", u.ID, t.GPU, u.NodeID)
		}
		if t.Milli < 0 || t.Slices < 0 || t.Replicas < 0 || t.Slices > maxSlices || t.Replicas > maxSlices {
			return nil, fmt.Errorf("apply usage %q: GPU %d: amount out of range", u.ID, t.GPU)
		}
		last = t.GPU
	}
	return n, nil
}

// fits checks the capacity of the node for a usage.
func (n *nodeState) fits(u *Usage) error {
	if u.CPUMHz > n.cpu || u.MemoryMiB > n.memory {
		return fmt.Errorf("%w: node %q has %d MHz and %d MiB free", ErrCapacity, n.spec.ID, n.cpu, n.memory)
	}
	for _, t := range u.Takes {
		c := &n.where[t.GPU].bank.cells[n.where[t.GPU].cell]
		whole := n.spec.GPUs[t.GPU].Mode == gpu.ModeWhole && c.tasks > 0
		if whole || t.Milli > int64(c.milli) || t.Slices > int64(c.slices) || t.Replicas > int64(c.replicas) {
			return fmt.Errorf("%w: GPU %q of node %q", ErrCapacity, n.spec.GPUs[t.GPU].ID, n.spec.ID)
		}
	}
	return nil
}

func (s *Snapshot) book(n *nodeState, u *Usage) {
	own := *u
	own.Takes = slices.Clone(u.Takes)
	at, _ := slices.BinarySearchFunc(n.holders, u.ID, byUsageID)
	n.holders = slices.Insert(n.holders, at, &own)
	s.setLow(n)
	s.usages[u.ID] = &own
	s.enqueue(n, &own)
	s.move(n, &own, 1)
}

// setLow brings the lowest priority of a node's banks up to date.
func (s *Snapshot) setLow(n *nodeState) {
	l := lowest(n.holders)
	for _, b := range n.banks {
		s.lows[b.id] = l
	}
}

func lowest(holders []*Usage) low {
	var l low
	for i, u := range holders {
		switch {
		case i == 0 || u.Priority < l.priority:
			l = low{true, u.Priority, u.milli()}
		case u.Priority == l.priority:
			l.milli += u.milli()
		}
	}
	return l
}

// restore books a usage that was just released: it fitted before.
func (s *Snapshot) restore(u Usage) { s.book(s.nodes[u.NodeID], &u) }

// mustRelease frees a usage that is known to be there.
func (s *Snapshot) mustRelease(id string) {
	if s.usages[id] != nil {
		_, _ = s.Release(id) // it is there
	}
}

// enqueue lists a usage in its queue. Work that was released and comes back
// keeps its place.
func (s *Snapshot) enqueue(n *nodeState, u *Usage) {
	if u.seq == 0 {
		s.booked++
		u.seq = s.booked
	}
	if u.Queue == "" {
		return
	}
	u.charge = s.charge(n, u)
	list := s.byQueue[u.Queue]
	at, _ := slices.BinarySearchFunc(list, u.seq, bySeq)
	s.byQueue[u.Queue] = slices.Insert(list, at, u)
}

func (s *Snapshot) dequeue(u *Usage) {
	if u.Queue == "" {
		return
	}
	list := s.byQueue[u.Queue]
	at, _ := slices.BinarySearchFunc(list, u.seq, bySeq)
	s.byQueue[u.Queue] = slices.Delete(list, at, at+1)
}

func bySeq(u *Usage, seq int64) int { return cmp.Compare(u.seq, seq) }

func byUsageID(u *Usage, id string) int { return strings.Compare(u.ID, id) }

// move books (sign 1) or frees (sign -1) the amounts of a usage.
func (s *Snapshot) move(n *nodeState, u *Usage, sign int64) {
	n.cpu -= sign * u.CPUMHz
	n.memory -= sign * u.MemoryMiB
	for _, t := range u.Takes {
		c := &n.where[t.GPU].bank.cells[n.where[t.GPU].cell]
		c.milli -= int32(sign * t.Milli)
		c.slices -= int32(sign * t.Slices)
		c.replicas -= int32(sign * t.Replicas)
		c.tasks += int32(sign)
	}
	if u.Queue != "" {
		s.queues[u.Queue] += sign * s.charge(n, u)
		if s.queues[u.Queue] == 0 {
			delete(s.queues, u.Queue)
		}
	}
	for _, b := range n.banks {
		s.touch(b)
	}
}

// charge is the GPU milli that a quota pays for a usage: per GPU the larger of
// its parts of compute, memory and turns.
func (s *Snapshot) charge(n *nodeState, u *Usage) int64 {
	var sum int64
	for _, t := range u.Takes {
		sum += chargeOf(&s.kinds[n.where[t.GPU].bank.kind], t)
	}
	return sum
}

func chargeOf(k *kind, t Take) int64 {
	m := t.Milli
	if k.Slices > 0 {
		m = max(m, (t.Slices*gpuMilli+k.Slices-1)/k.Slices)
	}
	if k.Replicas > 0 {
		m = max(m, (t.Replicas*gpuMilli+k.Replicas-1)/k.Replicas)
	}
	return m
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

func (s *Snapshot) adopt(b *bank) {
	if last := len(s.spare) - 1; last >= 0 {
		b.id = s.spare[last]
		s.spare = s.spare[:last]
		s.banks[b.id] = b
	} else {
		b.id = int32(len(s.banks))
		s.banks = append(s.banks, b)
		s.lows = append(s.lows, low{})
	}
	if b.kind >= 0 {
		s.stock[b.kind].gpus += int64(len(b.gpus))
		s.stock[b.kind].idle[b.idle]++
	}
	s.touch(b)
}

func (s *Snapshot) disown(b *bank) {
	if b.kind >= 0 {
		st := &s.stock[b.kind]
		st.gpus -= int64(len(b.gpus))
		st.free -= b.free
		st.idle[b.idle]--
	}
	s.banks[b.id] = nil
	s.lows[b.id] = low{}
	s.spare = append(s.spare, b.id)
	b.stamp = s.log.add(b.id)
}

// touch brings what is derived from a bank up to date and logs the change.
func (s *Snapshot) touch(b *bank) {
	if b.kind >= 0 {
		st := &s.stock[b.kind]
		st.free -= b.free
		st.idle[b.idle]--
		b.refresh(&s.kinds[b.kind])
		st.free += b.free
		st.idle[b.idle]++
	}
	b.stamp = s.log.add(b.id)
}
