// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// modelJob is a job as the model of Nomad has it.
type modelJob struct {
	key      nomad.JobKey
	queued   uint64            // index of its newest evaluation: of equal priority, the order that Nomad goes by
	versions []json.RawMessage // the newest last
	job      *api.Job
	index    uint64
	since    time.Time // when it was blocked; zero: it is not
	blocked  map[string]int
	told     uint64 // queued, when it was told of last
	// stable is the version that was deployed last: what Nomad goes back to. promoted is
	// the index of the version whose canaries were promoted, failed of that whose
	// deployment failed.
	stable           json.RawMessage
	promoted, failed uint64
	deploying        map[string]*modelDeployment // the newest with canaries, by group
	// lost is how many allocs of a group were stopped or moved since it was last looked at,
	// and broken how many have failed and are to be started again.
	lost, broken map[string]int
	// done is how many allocs of a group of the version that is registered have completed, and
	// ended is set once all have.
	done  map[string]int
	ended bool
	last  time.Time // when one completed last
}

// modelDeployment is one with canaries: of the version with that index, beside allocs of the
// version before it.
type modelDeployment struct {
	index  uint64
	before *api.TaskGroup
}

// modelAlloc is an alloc of the version of a group that it was started as, or became in
// place; spec is what of that cannot change in place.
type modelAlloc struct {
	stub     api.AllocationListStub
	group    *api.TaskGroup
	spec     string
	deployed uint64 // the index of the version that it is a canary of
	stopping int    // rounds until it has stopped; 0: it runs
	again    int    // rounds until another is started in place of one that failed
}

// model is Nomad as far as it matters here: it places what fits by constraints and
// device instances, highest priority first, starts what was stopped elsewhere or
// there again, and replaces what cannot change in place, as its update block has it.
type model struct {
	t         *testing.T
	nodes     []*api.Node
	jobs      map[string]*modelJob
	allocs    []*modelAlloc
	failed    []*modelAlloc // those that another is started for
	past      []*modelAlloc // those that have completed, of jobs that go on
	index     uint64
	started   int
	believed  *state.State
	devicesOf map[*api.NodeDeviceResource]*constraint.Device
	// refuses is why a node does not take a job, for a reason that the service does
	// not see; empty: it does.
	refuses func(j *modelJob, n *api.Node) string
	// stops is how many rounds the allocs of a job take to stop, where that is not two.
	stops map[string]int
	// delayed is set while Nomad's scheduler has not come to what was registered.
	delayed bool
	// unchangeable is how often a dispatched job was to be changed, and again how often one that
	// had ended was: Nomad runs a new version from the start. repeated says which jobs were
	// changed of which a part had completed, without need.
	unchangeable, again int
	repeated            []string
	// schedulers is how many evaluations Nomad works on at once, and ready which of them is placed first.
	schedulers int
	ready      *rand.Rand
	// interrupted reports whether the next count of a child is not set: no replica leads.
	interrupted func() bool
}

func number(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }

func word(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }

// manySchedulers is how many evaluations three servers of two processors each work on at once: the one
// that leads uses a quarter of its own, and one at least.
const manySchedulers = 5

func newModel(t *testing.T, machines, gpus int) *model {
	m := &model{t: t, jobs: map[string]*modelJob{}, index: 10, devicesOf: map[*api.NodeDeviceResource]*constraint.Device{}, schedulers: manySchedulers, ready: rand.New(rand.NewPCG(1, 17))}
	for i := range machines {
		n := &api.Node{
			ID: fmt.Sprintf("node-%d", i), Name: fmt.Sprintf("n%d", i), Datacenter: "dc1", NodePool: "default", Status: "ready", SchedulingEligibility: "eligible", ModifyIndex: 1,
			NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
		}
		for k := range gpus {
			d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "slice", Name: fmt.Sprintf("T4/%d", k), Attributes: map[string]*api.Attribute{
				"model": word("Tesla T4"), "type": word("T4"), "memory": number(16*1024, "MiB"), "slice_memory": number(1024, "MiB"), "slices": number(16, ""), "sharing": word("mps"),
			}}
			for s := range 16 {
				d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%d-%d::%d", i, k, s), Healthy: true})
			}
			n.NodeResources.Devices = append(n.NodeResources.Devices, d)
		}
		m.nodes = append(m.nodes, n)
	}
	return m
}

// show tells a state everything, as after a reconnection.
func (m *model) show(b *state.State) {
	m.believed = b
	var changes []nomad.Change
	for _, n := range m.nodes {
		changes = append(changes, nomad.Change{Node: nomad.NewNode(n, nomad.Hardware{})})
	}
	for _, j := range m.jobs {
		changes = append(changes, nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	}
	for _, a := range slices.Concat(m.allocs, m.failed) {
		changes = append(changes, nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	}
	for _, a := range m.past {
		changes = append(changes, nomad.Change{Past: nomad.NewAlloc(&a.stub)})
	}
	for _, j := range m.jobs {
		if len(j.blocked) > 0 {
			changes = append(changes, nomad.Change{Blocked: &nomad.Blocked{Index: m.index, EvalID: "e", Key: j.key, Missing: maps.Clone(j.blocked), Since: j.since, Why: m.why(j), ForDevices: m.forDevices(j)}})
		}
	}
	b.Heard()
	b.Apply(changes, m.index)
}

func (m *model) tell(c nomad.Change) { m.believed.Apply([]nomad.Change{c}, m.index) }

func (m *model) Read(_ context.Context, key nomad.JobKey) ([]byte, error) {
	j := m.jobs[key.String()]
	if j == nil {
		return nil, fmt.Errorf("no job %s", key)
	}
	return json.Marshal(map[string]any{"Job": j.job, "JobModifyIndex": j.index, "EnforceIndex": true})
}

func (m *model) Register(_ context.Context, key nomad.JobKey, body []byte) error {
	var r struct {
		Job            json.RawMessage
		EnforceIndex   bool
		JobModifyIndex uint64
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return err
	}
	switch j := m.jobs[key.String()]; {
	case j == nil:
	case r.EnforceIndex && j.index != r.JobModifyIndex:
		return nomad.ErrConflict
	case j.job.Dispatched: // the HTTP API knows no such field
		m.unchangeable++
		return errors.New("field 'Dispatched' is read-only")
	case j.ended:
		m.again++
	}
	job := map[string]json.RawMessage{}
	if err := json.Unmarshal(r.Job, &job); err != nil {
		return err
	}
	if j := m.jobs[key.String()]; j != nil && m.repeatedFor(j, r.Job) {
		m.repeated = append(m.repeated, fmt.Sprintf("%s %s", time.Now().Format("04:05"), key))
	}
	delete(job, "ParentID") // Nomad does not take it from a submission: whatever is registered again is no child any more
	raw, err := json.Marshal(job)
	if err != nil {
		return err
	}
	m.register(raw)
	return nil
}

func (m *model) register(raw json.RawMessage) {
	job := &api.Job{}
	if err := json.Unmarshal(raw, job); err != nil {
		m.t.Fatal(err)
	}
	job.Canonicalize()
	pending := "pending"
	job.Status = &pending // Nomad's own, whatever the submission says
	key := nomad.JobKey{Namespace: *job.Namespace, ID: *job.ID}
	j := m.jobs[key.String()]
	if j == nil {
		j = &modelJob{key: key, deploying: map[string]*modelDeployment{}, lost: map[string]int{}, broken: map[string]int{}}
		m.jobs[key.String()] = j
	}
	m.index++
	j.index, j.queued, j.job = m.index, m.index, job
	version := uint64(len(j.versions))
	j.job.JobModifyIndex, j.job.Version = &j.index, &version
	j.done, j.ended = map[string]int{}, false
	j.versions = append(j.versions, raw)
	m.tell(nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	m.schedule()
}

// Scale sets counts, as Nomad's own route does: also of a dispatched job, which stays a child. A job of
// which nothing is left to run is dead. Every count is a version of its own.
func (m *model) Scale(_ context.Context, key nomad.JobKey, index uint64, steps []admit.Scaling) error {
	for _, s := range steps {
		j := m.jobs[key.String()]
		if j == nil || j.index != index {
			return nomad.ErrConflict
		}
		if m.interrupted != nil && m.interrupted() {
			return errors.New("no leader")
		}
		if j.ended {
			m.again++
		}
		if j.done["g"] > 0 && s.Count > 0 && s.Group != admit.HoldGroup {
			m.repeated = append(m.repeated, fmt.Sprintf("%s %s", time.Now().Format("04:05"), key))
		}
		raw, err := json.Marshal(j.job)
		if err != nil {
			return err
		}
		scaled, all := &api.Job{}, 0
		if err := json.Unmarshal(raw, scaled); err != nil {
			return err
		}
		scaled.LookupTaskGroup(s.Group).Count = &s.Count
		for _, g := range scaled.TaskGroups {
			all += *g.Count
		}
		if all == 0 {
			m.t.Errorf("%s has nothing left to run: Nomad takes it for dead", key)
		}
		if raw, err = json.Marshal(scaled); err != nil {
			return err
		}
		m.register(raw)
		index = j.index
	}
	return nil
}

// dispatch starts a child of a parameterized job, with what its parent holds.
func (m *model) dispatch(parent nomad.JobKey, id string, priority int) nomad.JobKey {
	m.t.Helper()
	return m.child(parent, id, func(j *api.Job) { j.Dispatched, j.Priority = true, &priority })
}

// launch starts a child of a periodic job, with what its parent holds.
func (m *model) launch(parent nomad.JobKey, id string) nomad.JobKey {
	m.t.Helper()
	return m.child(parent, id, func(j *api.Job) { j.Periodic = nil })
}

func (m *model) child(parent nomad.JobKey, id string, change func(*api.Job)) nomad.JobKey {
	m.t.Helper()
	of := m.jobs[parent.String()]
	raw, err := json.Marshal(of.job)
	if err != nil {
		m.t.Fatal(err)
	}
	child := &api.Job{}
	if err := json.Unmarshal(raw, child); err != nil {
		m.t.Fatal(err)
	}
	child.ID, child.Name, child.ParentID = &id, &id, &parent.ID
	change(child)
	if raw, err = json.Marshal(child); err != nil {
		m.t.Fatal(err)
	}
	m.register(raw)
	return nomad.JobKey{Namespace: parent.Namespace, ID: id}
}

func (m *model) Stop(_ context.Context, id string, _ bool) error {
	for _, a := range m.allocs {
		if a.stub.ID == id && a.stopping == 0 {
			m.end(a)
			m.noteLost(a)
		}
	}
	m.schedule()
	return nil
}

func (m *model) end(a *modelAlloc) {
	m.index++
	if j := m.jobs[a.stub.Namespace+"/"+a.stub.JobID]; j != nil {
		j.queued = m.index
	}
	a.stopping, a.stub.DesiredStatus, a.stub.ModifyIndex = max(2, m.stops[a.stub.JobID]), "stop", m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
}

func (m *model) Allocs(_ context.Context, node string) ([]*nomad.Alloc, uint64, error) {
	var list []*nomad.Alloc
	for _, a := range m.allocs {
		if a.stub.NodeID == node {
			list = append(list, nomad.NewAlloc(&a.stub))
		}
	}
	return list, m.index, nil
}

// stop ends a job.
func (m *model) stop(j *modelJob) {
	stopped := true
	j.job.Stop = &stopped
	m.forgetPast(j)
	m.index++
	*j.job.JobModifyIndex = m.index
	m.tell(nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	m.schedule()
}

// finish has a batch job end by itself if all of it runs.
func (m *model) finish(j *modelJob) {
	want := 0
	for _, g := range j.job.TaskGroups {
		want += *g.Count - j.done[*g.Name]
	}
	list := slices.DeleteFunc(slices.Clone(m.allocs), func(a *modelAlloc) bool {
		return a.stub.JobID != j.key.ID || a.stub.Namespace != j.key.Namespace || a.stopping > 0
	})
	if *j.job.Type != "batch" || len(list) == 0 || len(list) != want || len(j.blocked) > 0 {
		return
	}
	for _, a := range list {
		m.completeOne(j, a)
	}
	dead := "dead"
	j.ended, j.job.Status = true, &dead
	m.forgetPast(j)
	m.tell(nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	m.schedule()
}

// pass lets a second go by: what was stopped ends, and Nomad looks for room.
func (m *model) pass() {
	m.allocs = slices.DeleteFunc(m.allocs, func(a *modelAlloc) bool {
		if a.stopping == 0 {
			return false
		}
		if a.stopping--; a.stopping > 0 {
			return false
		}
		m.index++
		a.stub.ClientStatus, a.stub.ModifyIndex = "complete", m.index
		m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
		return true
	})
	for _, a := range m.failed {
		a.again = max(0, a.again-1)
	}
	for _, key := range slices.Sorted(maps.Keys(m.jobs)) {
		m.promoteByItself(m.jobs[key])
	}
	m.schedule()
}

// schedule is Nomad's schedulers: each takes the highest priority that is left, of equals the one
// whose evaluation is the oldest, and any of them may be the first to place what it has taken.
// Whoever registers a job again puts it at the end.
func (m *model) schedule() {
	if m.delayed {
		return
	}
	list := slices.SortedFunc(maps.Values(m.jobs), func(x, y *modelJob) int {
		if *x.job.Priority != *y.job.Priority {
			return *y.job.Priority - *x.job.Priority
		}
		return cmp.Compare(x.queued, y.queued)
	})
	for len(list) > 0 {
		at := m.readyFirst(list)
		j := list[at]
		list = slices.Delete(list, at, at+1)
		missing := map[string]int{}
		for _, g := range j.job.TaskGroups {
			if n := m.place(j, g); n > 0 {
				missing[*g.Name] = n
			}
		}
		m.note(j, missing)
	}
}

// readyFirst is where in a list that is in Nomad's order the job is that is placed next. What neither
// waits nor was changed has no evaluation, and takes no scheduler.
func (m *model) readyFirst(list []*modelJob) int {
	var taken []int
	for i, j := range list {
		if len(j.blocked) == 0 && j.told == j.queued {
			if len(taken) == 0 {
				return i
			}
			continue
		}
		if taken = append(taken, i); len(taken) == m.schedulers {
			break
		}
	}
	return taken[m.ready.IntN(len(taken))]
}

// says is what Nomad says of a job that waits.
func (m *model) says(j *modelJob) string {
	for _, n := range m.nodes {
		if m.refuses != nil && m.refuses(j, n) != "" {
			return "exhausted " + m.refuses(j, n) + " on 1 nodes"
		}
	}
	return missingDevices
}

// missingDevices is what Nomad says where nothing else is missing.
const missingDevices = "missing devices"

// why is what Nomad says of each group of a job that waits, forDevices of which it says nothing else.
func (m *model) why(j *modelJob) map[string]string {
	why := map[string]string{}
	for group := range j.blocked {
		why[group] = m.says(j)
	}
	return why
}

func (m *model) forDevices(j *modelJob) map[string]bool {
	is := map[string]bool{}
	for group := range j.blocked {
		is[group] = m.says(j) == missingDevices
	}
	return is
}

func (m *model) note(j *modelJob, missing map[string]int) {
	if maps.Equal(j.blocked, missing) && j.told == j.queued {
		return
	}
	j.told = j.queued
	m.index++
	if len(missing) == 0 {
		j.blocked, j.since = nil, time.Time{}
		m.tell(nomad.Change{Unblocked: &j.key})
		return
	}
	if j.since.IsZero() {
		j.since = time.Now()
	}
	j.blocked = missing
	m.tell(nomad.Change{Blocked: &nomad.Blocked{Index: m.index, EvalID: "e", Key: j.key, Missing: maps.Clone(missing), Since: j.since, Why: m.why(j), ForDevices: m.forDevices(j)}})
}

func targets(n *api.Node) map[string]string {
	return map[string]string{"node.unique.id": n.ID, "node.unique.name": n.Name, "node.datacenter": n.Datacenter, "node.class": "", "node.pool": n.NodePool}
}

// start places an alloc, on the node that the group's affinities prefer the most.
func (m *model) start(j *modelJob, g *api.TaskGroup, canary bool, in *modelAlloc) bool {
	nodes := slices.Clone(m.nodes)
	slices.SortStableFunc(nodes, func(x, y *api.Node) int { return preference(g, y) - preference(g, x) })
	return slices.ContainsFunc(nodes, func(n *api.Node) bool { return m.startOn(n, j, g, canary, in) })
}

// preference is the weight of the affinities of a group that a node matches.
func preference(g *api.TaskGroup, n *api.Node) (weight int) {
	for _, a := range g.Affinities {
		if (constraint.Constraint{Left: a.LTarget, Operand: a.Operand, Right: a.RTarget}).OnNode(targets(n)) {
			weight += int(*a.Weight)
		}
	}
	return weight
}

// full reports whether a node has as many allocs of a group as a constraint distinct_property allows.
func (m *model) full(n *api.Node, j *modelJob, g *api.TaskGroup, in *modelAlloc) bool {
	has := 0
	for _, a := range m.allocs {
		if a != in && a.stopping == 0 && a.stub.NodeID == n.ID && a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.stub.TaskGroup == *g.Name {
			has++
		}
	}
	return slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool {
		if c.Operand != "distinct_property" || c.LTarget != "${node.unique.id}" {
			return false
		}
		most, err := strconv.Atoi(cmp.Or(c.RTarget, "1"))
		if err != nil {
			m.t.Fatal(err)
		}
		return has >= most
	})
}

func (m *model) startOn(n *api.Node, j *modelJob, g *api.TaskGroup, canary bool, in *modelAlloc) bool {
	if n.SchedulingEligibility != "eligible" || !admitted(g, n) || m.full(n, j, g, in) || m.refuses != nil && m.refuses(j, n) != "" {
		return false
	}
	taken := map[string]bool{}
	for _, a := range m.allocs {
		if a == in {
			continue // it goes in the plan that places this one
		}
		for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
			for _, id := range d.DeviceIDs {
				taken[id] = true
			}
		}
	}
	devices := m.devices(n, g.Tasks[0].Resources.Devices, taken)
	if devices == nil {
		return false
	}
	m.index++
	m.started++
	a := &modelAlloc{group: g, spec: specOf(g), stub: api.AllocationListStub{
		ID: fmt.Sprintf("alloc-%05d", m.started), Namespace: j.key.Namespace, JobID: j.key.ID, JobVersion: *j.job.Version, TaskGroup: *g.Name, NodeID: n.ID, NodeName: n.Name,
		ClientStatus: "running", DesiredStatus: "run", CreateTime: time.Now().UnixNano(), ModifyIndex: m.index,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
			Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 100}, Devices: devices}}},
	}}
	if canary {
		a.deployed, a.stub.DeploymentStatus = j.index, &api.AllocDeploymentStatus{Canary: true}
	}
	m.allocs = append(m.allocs, a)
	if !canary {
		m.replaced(j, a)
	}
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	return true
}

// devices serves device blocks, each from one group that its affinities prefer; nil where that cannot be.
func (m *model) devices(n *api.Node, blocks []*api.RequestedDevice, taken map[string]bool) []*api.AllocatedDeviceResource {
	out := []*api.AllocatedDeviceResource{}
	for _, b := range blocks {
		var d *api.NodeDeviceResource
		for _, one := range n.NodeResources.Devices {
			free := 0
			for _, in := range one.Instances {
				if !taken[in.ID] {
					free++
				}
			}
			if m.meets(one, b) && free >= int(*b.Count) && (d == nil || m.prefers(one, b) > m.prefers(d, b)) {
				d = one
			}
		}
		if d == nil {
			return nil
		}
		r := &api.AllocatedDeviceResource{Vendor: d.Vendor, Type: d.Type, Name: d.Name}
		for _, in := range d.Instances {
			if !taken[in.ID] && len(r.DeviceIDs) < int(*b.Count) {
				taken[in.ID] = true
				r.DeviceIDs = append(r.DeviceIDs, in.ID)
			}
		}
		out = append(out, r)
	}
	return out
}
