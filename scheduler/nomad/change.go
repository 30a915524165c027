// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"maps"
	"time"
)

// Change is one thing that is different now. Exactly one field is set.
type Change struct {
	Node      *Node
	NodeGone  string
	Alloc     *Alloc // also when it ended: see Alloc.Holds
	AllocGone string
	// Past is an alloc that ended before anything was heard of it.
	Past *Alloc
	Job  *Job
	// JobGone is a job that was purged. Its allocs are gone with it: Nomad
	// deletes them in the same transaction, and tells of none.
	JobGone   *JobKey
	Blocked   *Blocked
	Unblocked *JobKey
}

// Blocked is a job some of whose allocs Nomad cannot place now.
type Blocked struct {
	Index   uint64
	EvalID  string
	Key     JobKey
	Missing map[string]int // group → allocs not placed
	Since   time.Time
	// Why is what Nomad says of each group.
	Why map[string]string
	// ForDevices are the groups of which Nomad names only missing devices, and what the service goes by as
	// well when it chooses a node. Of another reason, such as a port that is taken, it knows nothing.
	ForDevices map[string]bool
}

// Allocs is how many allocs of a group Nomad cannot place; none where b is nil.
func (b *Blocked) Allocs(group string) int {
	if b == nil {
		return 0
	}
	return b.Missing[group]
}

// Sink takes the changes, in order.
type Sink interface {
	// Apply takes changes. Index is the Nomad index that they lead to; 0 where others of
	// the same index could not be read.
	Apply(changes []Change, index uint64)
}

// Mirror is the state of Nomad as last heard, from which differences are made.
// It is used by one goroutine.
type Mirror struct {
	hardware Hardware
	nodes    map[string]*Node
	allocs   map[string]listedIn
	jobs     map[JobKey]uint64 // job modify index
	blocked  map[JobKey]*Blocked
	evals    map[JobKey]map[string]*eventEval // that are blocked, by ID: mostly one of a job
	at       listed                           // of the last complete reading
	complete bool                             // set by the first
	// told is what events told while lists are read: a page may be older.
	told map[string]told
}

// listedIn is an alloc as the mirror has it.
type listedIn struct {
	index uint64 // modify index
	job   JobKey
}

// indexes are those of what a mirror has.
type indexes struct {
	hardware Hardware
	complete bool
	nodes    map[string]uint64
	jobs     map[JobKey]uint64
}

func (m *Mirror) known() indexes {
	have := indexes{m.hardware, m.complete, make(map[string]uint64, len(m.nodes)), maps.Clone(m.jobs)}
	for id, n := range m.nodes {
		have.nodes[id] = n.Index
	}
	return have
}

// String counts what the mirror has.
func (m *Mirror) String() string {
	return fmt.Sprintf("%d nodes, %d jobs, %d allocations", len(m.nodes), len(m.jobs), len(m.allocs))
}

// told is at which index events told of something last, and that it was gone.
type told struct{ index, gone uint64 }

// begin notes from here on what events tell, until end: lists are read.
func (m *Mirror) begin() { m.told = map[string]told{} }

func (m *Mirror) end() { m.told = nil }

// note notes that an event told of something.
func (m *Mirror) note(what string, index uint64, gone bool) {
	if m.told == nil {
		return
	}
	t := m.told[what]
	if t.index = max(t.index, index); gone {
		t.gone = max(t.gone, index)
	}
	m.told[what] = t
}

// gone reports whether something that a list has as of an index was told to be gone.
func (m *Mirror) gone(what string, index uint64) bool {
	return index > 0 && m.told[what].gone >= index
}

// since reports whether something was told of that happened after an index: a list of then
// says nothing about it.
func (m *Mirror) since(what string, index uint64) bool { return m.told[what].index > index }

// rewind makes everything that is read from here on count as newer.
func (m *Mirror) rewind() {
	m.at = listed{}
	clear(m.told)
	for id, n := range m.nodes {
		old := *n
		old.Index, m.nodes[id] = 0, &old
	}
	for id, a := range m.allocs {
		m.allocs[id] = listedIn{job: a.job}
	}
	for key := range m.jobs {
		m.jobs[key] = 0
	}
	for key, b := range m.blocked {
		old := *b
		old.Index, m.blocked[key] = 0, &old
	}
	for _, evals := range m.evals {
		for id, e := range evals {
			old := *e
			old.ModifyIndex, evals[id] = 0, &old
		}
	}
}

// NewMirror returns an empty mirror.
func NewMirror(h Hardware) *Mirror {
	return &Mirror{
		hardware: h, nodes: map[string]*Node{}, allocs: map[string]listedIn{},
		jobs: map[JobKey]uint64{}, blocked: map[JobKey]*Blocked{}, evals: map[JobKey]map[string]*eventEval{},
	}
}

// node takes a node as it is at its index.
func (m *Mirror) node(n *Node) []Change {
	if have := m.nodes[n.Plan.ID]; have != nil && have.Index >= n.Index {
		return nil
	}
	m.nodes[n.Plan.ID] = n
	return []Change{{Node: n}}
}

// listedNode takes a node of a list.
func (m *Mirror) listedNode(n *Node) []Change {
	if m.gone(n.Plan.ID, n.Index) {
		return nil
	}
	return m.node(n)
}

func (m *Mirror) nodeGone(id string) []Change {
	if m.nodes[id] == nil {
		return nil
	}
	delete(m.nodes, id)
	return []Change{{NodeGone: id}}
}

// alloc takes an alloc. One that ended is forgotten, unless Nomad starts another in its place
// later.
func (m *Mirror) alloc(a *Alloc) []Change {
	have, known := m.allocs[a.ID]
	switch {
	case known && have.index >= a.Index:
		return nil
	case a.Holds() || a.Returns:
		m.allocs[a.ID] = listedIn{a.Index, a.Key()}
	case known:
		delete(m.allocs, a.ID)
	default:
		return nil
	}
	return []Change{{Alloc: a}}
}

// listedAlloc takes an alloc of a list. That of a job which was purged is gone with it.
func (m *Mirror) listedAlloc(a *Alloc) []Change {
	if m.gone(a.ID, a.Index) || m.gone(a.Key().String(), a.Index) {
		return nil
	}
	return m.alloc(a)
}

func (m *Mirror) job(j *Job) []Change {
	if have, known := m.jobs[j.Key]; known && have > j.Index {
		return nil
	}
	m.jobs[j.Key] = j.Index
	return []Change{{Job: j}}
}

// listedJob takes a job of a list: an event about it is newer, where the index of its
// specification is the same.
func (m *Mirror) listedJob(j *Job) []Change {
	if have, known := m.jobs[j.Key]; known && have >= j.Index || m.gone(j.Key.String(), j.Index) {
		return nil
	}
	return m.job(j)
}

func (m *Mirror) jobGone(key JobKey) []Change {
	if _, known := m.jobs[key]; !known {
		return nil
	}
	delete(m.jobs, key)
	return []Change{{JobGone: &key}}
}

// later reports whether there is anything of a job that is newer than an index: the job is there then,
// whatever a list or an event of that index says.
func (m *Mirror) later(key JobKey, index uint64) bool {
	for _, a := range m.allocs {
		if a.job == key && a.index > index {
			return true
		}
	}
	for _, e := range m.evals[key] {
		if e.ModifyIndex > index {
			return true
		}
	}
	return false
}

// purged takes that a job was purged at an index, and all that is of it: its allocs may have been
// listed before, and it after.
func (m *Mirror) purged(key JobKey, index uint64) (changes []Change) {
	if have, known := m.jobs[key]; known && have <= index && !m.later(key, index) {
		changes = m.jobGone(key)
	}
	for id, a := range m.allocs {
		if a.job == key && a.index <= index {
			delete(m.allocs, id)
			changes = append(changes, Change{AllocGone: id})
		}
	}
	for id, e := range m.evals[key] {
		if e.ModifyIndex <= index {
			changes = append(changes, m.evalEnded(key, id)...)
		}
	}
	return changes
}

// eval takes an evaluation: one that is blocked says what is missing, any
// other state of the same evaluation ends that.
func (m *Mirror) eval(e *eventEval) []Change {
	key := JobKey{e.Namespace, e.JobID}
	have, known := m.blocked[key], m.evals[key][e.ID]
	if known != nil && known.ModifyIndex > e.ModifyIndex {
		return nil
	}
	if e.Status != "blocked" {
		return m.evalEnded(key, e.ID)
	}
	if m.evals[key] == nil {
		m.evals[key] = map[string]*eventEval{}
	}
	m.evals[key][e.ID] = e
	if have != nil && have.Index > e.ModifyIndex {
		return nil
	}
	m.blocked[key] = e.blocked(have)
	return []Change{{Blocked: m.blocked[key]}}
}

// listedEval takes an evaluation of a list.
func (m *Mirror) listedEval(e *eventEval) []Change {
	if m.gone(e.ID, e.ModifyIndex) || m.gone(JobKey{e.Namespace, e.JobID}.String(), e.ModifyIndex) {
		return nil
	}
	return m.eval(e)
}

// evalEnded forgets a blocked evaluation. Nomad keeps one of a job, and gives up the newer of two
// where it has tried the older again since: what that says is missing still.
func (m *Mirror) evalEnded(key JobKey, id string) []Change {
	have := m.blocked[key]
	if delete(m.evals[key], id); len(m.evals[key]) == 0 {
		delete(m.evals, key)
	}
	if have == nil || have.EvalID != id {
		return nil
	}
	var left *eventEval
	for _, e := range m.evals[key] {
		if left == nil || e.ModifyIndex > left.ModifyIndex {
			left = e
		}
	}
	if left == nil {
		delete(m.blocked, key)
		return []Change{{Unblocked: &key}}
	}
	m.blocked[key] = left.blocked(have)
	return []Change{{Blocked: m.blocked[key]}}
}
