package nomad

import "time"

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
	Index  uint64
	EvalID string
	Key    JobKey
	// Queued is the index at which the evaluation was made: of equal priority, Nomad
	// looks at the oldest first. A job that is registered again has a new one.
	Queued  uint64
	Missing map[string]int // group → allocs not placed
	Since   time.Time
	// Why is what Nomad says of each group.
	Why map[string]string
	// ForDevices are the groups of which Nomad names only missing devices, and what the service goes by as
	// well when it chooses a node. Of another reason, such as a port that is taken, it knows nothing.
	ForDevices map[string]bool
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
	allocs   map[string]uint64 // modify index
	jobs     map[JobKey]uint64 // job modify index
	blocked  map[JobKey]*Blocked
	evals    map[JobKey]map[string]*eventEval // that are blocked, by ID: mostly one of a job
	at       listed                           // of the last complete reading
}

// rewind makes everything that is read from here on count as newer.
func (m *Mirror) rewind() {
	for id, n := range m.nodes {
		old := *n
		old.Index, m.nodes[id] = 0, &old
	}
	for id := range m.allocs {
		m.allocs[id] = 0
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
		hardware: h, nodes: map[string]*Node{}, allocs: map[string]uint64{},
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
	case known && have >= a.Index:
		return nil
	case a.Holds() || a.Returns:
		m.allocs[a.ID] = a.Index
	case known:
		delete(m.allocs, a.ID)
	default:
		return nil
	}
	return []Change{{Alloc: a}}
}

func (m *Mirror) job(j *Job) []Change {
	if have, known := m.jobs[j.Key]; known && have > j.Index {
		return nil
	}
	m.jobs[j.Key] = j.Index
	return []Change{{Job: j}}
}

func (m *Mirror) jobGone(key JobKey) []Change {
	if _, known := m.jobs[key]; !known {
		return nil
	}
	delete(m.jobs, key)
	return []Change{{JobGone: &key}}
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
