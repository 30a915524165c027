package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// variables keeps what the service stores, within the limit that Nomad has.
type variables struct {
	mu    sync.Mutex
	items map[string]nomad.Item
	index uint64
}

func (v *variables) Get(_ context.Context, path string) (nomad.Item, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	item := v.items[path]
	item.Path, item.Values = path, maps.Clone(item.Values)
	return item, nil
}

func (v *variables) List(_ context.Context, prefix string) (map[string]uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	found := map[string]uint64{}
	for path, item := range v.items {
		if strings.HasPrefix(path, prefix) {
			found[path] = item.Index
		}
	}
	return found, nil
}

func (v *variables) Put(_ context.Context, item nomad.Item) (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	size := 0
	for k, value := range item.Values {
		size += len(k) + len(value)
	}
	if size > 64<<10 || v.items[item.Path].Index != item.Index {
		return 0, fmt.Errorf("put %d bytes: %w", size, nomad.ErrConflict)
	}
	v.index++
	item.Index = v.index
	v.items[item.Path] = item
	return v.index, nil
}

func (v *variables) Delete(_ context.Context, path string, index uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.items[path].Index != index {
		return nomad.ErrConflict
	}
	delete(v.items, path)
	return nil
}

// modelJob is a job as the model of Nomad has it.
type modelJob struct {
	key      nomad.JobKey
	versions []json.RawMessage // the newest last
	job      *api.Job
	index    uint64
	since    time.Time // when it was blocked; zero: it is not
	blocked  map[string]int
}

// modelAlloc is an alloc; blocks are its device blocks when it started.
type modelAlloc struct {
	stub     api.AllocationListStub
	blocks   string
	stopping int // rounds until it has stopped; 0: it runs
}

// model is Nomad as far as it matters here: it places what fits by constraints and
// device instances, highest priority first, starts what was stopped elsewhere or
// there again, and replaces what has other device blocks.
type model struct {
	t       *testing.T
	nodes   []*api.Node
	jobs    map[string]*modelJob
	allocs  []*modelAlloc
	index   uint64
	started int
	book    *decide.Book
}

func number(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }

func word(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }

func newModel(t *testing.T, machines, gpus int) *model {
	m := &model{t: t, jobs: map[string]*modelJob{}, index: 10}
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

// show tells a book everything, as after a reconnection.
func (m *model) show(b *decide.Book) {
	m.book = b
	var changes []nomad.Change
	for _, n := range m.nodes {
		changes = append(changes, nomad.Change{Node: nomad.NewNode(n, nomad.Hardware{})})
	}
	for _, j := range m.jobs {
		changes = append(changes, nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	}
	for _, a := range m.allocs {
		changes = append(changes, nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	}
	for _, j := range m.jobs {
		if len(j.blocked) > 0 {
			changes = append(changes, nomad.Change{Blocked: &nomad.Blocked{Index: m.index, EvalID: "e", Key: j.key, Missing: maps.Clone(j.blocked), Since: j.since}})
		}
	}
	b.Heard()
	b.Apply(changes, m.index)
}

func (m *model) tell(c nomad.Change) { m.book.Apply([]nomad.Change{c}, m.index) }

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
	if j := m.jobs[key.String()]; r.EnforceIndex && j != nil && j.index != r.JobModifyIndex {
		return nomad.ErrConflict
	}
	m.register(r.Job)
	return nil
}

func (m *model) register(raw json.RawMessage) {
	job := &api.Job{}
	if err := json.Unmarshal(raw, job); err != nil {
		m.t.Fatal(err)
	}
	job.Canonicalize()
	key := nomad.JobKey{Namespace: *job.Namespace, ID: *job.ID}
	j := m.jobs[key.String()]
	if j == nil {
		j = &modelJob{key: key}
		m.jobs[key.String()] = j
	}
	m.index++
	j.index, j.job = m.index, job
	j.job.JobModifyIndex = &j.index
	j.versions = append(j.versions, raw)
	m.tell(nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
	m.schedule()
}

func (m *model) Stop(_ context.Context, id string) error {
	for _, a := range m.allocs {
		if a.stub.ID == id && a.stopping == 0 {
			m.end(a)
		}
	}
	m.schedule()
	return nil
}

func (m *model) end(a *modelAlloc) {
	m.index++
	a.stopping, a.stub.DesiredStatus, a.stub.ModifyIndex = 2, "stop", m.index
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
	m.schedule()
}

// schedule is Nomad's scheduler: the highest priority first.
func (m *model) schedule() {
	list := slices.SortedFunc(maps.Values(m.jobs), func(x, y *modelJob) int {
		if *x.job.Priority != *y.job.Priority {
			return *y.job.Priority - *x.job.Priority
		}
		return strings.Compare(x.key.String(), y.key.String())
	})
	for _, j := range list {
		missing := map[string]int{}
		for _, g := range j.job.TaskGroups {
			if n := m.place(j, g); n > 0 {
				missing[*g.Name] = n
			}
		}
		m.note(j, missing)
	}
}

func (m *model) note(j *modelJob, missing map[string]int) {
	if maps.Equal(j.blocked, missing) {
		return
	}
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
	m.tell(nomad.Change{Blocked: &nomad.Blocked{Index: m.index, EvalID: "e", Key: j.key, Missing: maps.Clone(missing), Since: j.since}})
}

func blocksOf(g *api.TaskGroup) string {
	text, _ := json.Marshal(g.Tasks[0].Resources.Devices)
	return string(text)
}

// place starts what is missing of a group and returns how many find no room.
func (m *model) place(j *modelJob, g *api.TaskGroup) int {
	want := *g.Count
	if j.job.Stop != nil && *j.job.Stop {
		want = 0
	}
	live := 0
	for _, a := range m.allocs {
		switch {
		case a.stub.JobID != j.key.ID || a.stub.Namespace != j.key.Namespace || a.stub.TaskGroup != *g.Name || a.stopping > 0:
		case live == want || a.blocks != blocksOf(g):
			m.end(a)
		default:
			live++
		}
	}
	for ; live < want; live++ {
		if !m.start(j, g) {
			return want - live
		}
	}
	return 0
}

func targets(n *api.Node) map[string]string {
	return map[string]string{"node.unique.id": n.ID, "node.unique.name": n.Name, "node.datacenter": n.Datacenter, "node.class": "", "node.pool": n.NodePool}
}

func (m *model) start(j *modelJob, g *api.TaskGroup) bool {
	for _, n := range m.nodes {
		if slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool {
			return !constraint.Constraint{Left: c.LTarget, Operand: c.Operand, Right: c.RTarget}.OnNode(targets(n))
		}) {
			continue
		}
		taken := map[string]bool{}
		for _, a := range m.allocs {
			for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
				for _, id := range d.DeviceIDs {
					taken[id] = true
				}
			}
		}
		devices := m.devices(n, g.Tasks[0].Resources.Devices, taken)
		if devices == nil {
			continue
		}
		m.index++
		m.started++
		a := &modelAlloc{blocks: blocksOf(g), stub: api.AllocationListStub{
			ID: fmt.Sprintf("alloc-%05d", m.started), Namespace: j.key.Namespace, JobID: j.key.ID, TaskGroup: *g.Name, NodeID: n.ID, NodeName: n.Name,
			ClientStatus: "running", DesiredStatus: "run", CreateTime: time.Now().UnixNano(), ModifyIndex: m.index,
			AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
				Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 100}, Devices: devices}}},
		}}
		m.allocs = append(m.allocs, a)
		m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
		return true
	}
	return false
}

// devices serves device blocks, each from one group; nil where that cannot be.
func (m *model) devices(n *api.Node, blocks []*api.RequestedDevice, taken map[string]bool) []*api.AllocatedDeviceResource {
	var out []*api.AllocatedDeviceResource
	for _, b := range blocks {
		at := slices.IndexFunc(n.NodeResources.Devices, func(d *api.NodeDeviceResource) bool {
			free := 0
			for _, in := range d.Instances {
				if !taken[in.ID] {
					free++
				}
			}
			return free >= int(*b.Count)
		})
		if at < 0 {
			return nil
		}
		d := n.NodeResources.Devices[at]
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

const modelConfig = `
preemption {
  min_run_time     = "0s"
  hold_direct_jobs = true
  max_per_minute   = 600
}
queue "a" {
  gpus       = 2
  borrow     = false
  namespaces = ["a"]
}
queue "b" {
  gpus       = 3
  namespaces = ["b"]
}
`

// history drives a service beside a model of Nomad through random events.
type modelRun struct {
	*model
	rng     *rand.Rand
	store   *variables
	config  *config.Config
	decider *decide.Decider
	loop    *Loop
	log     []string
}

// lead starts a replica that knows nothing but what is stored and what Nomad says.
func (h *modelRun) lead(ctx context.Context) {
	b := decide.NewBook(h.config, time.Now)
	h.decider = decide.NewDecider(b, h.store, func() bool { return true })
	h.show(b)
	if err := h.decider.Load(ctx); err != nil {
		h.t.Fatal(err)
	}
	h.loop = &Loop{Book: b, Decider: h.decider, Actor: h.model, Config: func() *config.Config { return h.config }, Logger: hclog.NewNullLogger()}
	h.loop.Audit = func(e view.Event) {
		h.log = append(h.log, fmt.Sprintf("%s   %s: %s", e.At.Format("04:05"), e.Kind, e.Text))
	}
	h.loop.begin()
}

func (h *modelRun) second(ctx context.Context) {
	time.Sleep(time.Second)
	h.book.Heard()
	h.loop.round(ctx)
	h.pass()
}

func (h *modelRun) job() json.RawMessage {
	namespace, id := []string{"a", "b", "c"}[h.rng.IntN(3)], fmt.Sprintf("j%d", h.rng.IntN(6))
	meta := map[string]string{"gpu": []string{"1", "4G", "8G", "0.5", "1G"}[h.rng.IntN(5)]}
	count := 1 + h.rng.IntN(4)
	if h.rng.IntN(4) == 0 {
		meta["gpu_gang"] = "true"
	}
	raw, err := json.Marshal(map[string]any{
		"ID": id, "Name": id, "Namespace": namespace, "Type": []string{"service", "batch"}[h.rng.IntN(2)], "Priority": 10 + 20*h.rng.IntN(5), "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{"Name": "g", "Count": count, "Tasks": []any{map[string]any{"Name": "t", "Driver": "docker", "Meta": meta, "Resources": map[string]any{"CPU": 100, "MemoryMB": 100}}}}},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return raw
}

// submit goes through the service, as the proxy does it.
func (h *modelRun) submit(ctx context.Context, raw json.RawMessage) {
	j, err := admit.Read([]byte(`{"Job":`+string(raw)+`}`), admit.Query{})
	if err != nil {
		h.t.Fatal(err)
	}
	d, err := h.decider.Decide(ctx, j.Asks, false)
	if err != nil {
		h.log = append(h.log, "  refused: "+err.Error())
		return
	}
	body, err := j.Apply(d, admit.Link{})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.Register(ctx, nomad.JobKey{Namespace: j.Namespace, ID: j.ID}, body); err != nil {
		h.t.Fatal(err)
	}
	h.decider.Settle(ctx, j.Asks, d, true)
}

func (h *modelRun) any() *modelJob {
	keys := slices.Sorted(maps.Keys(h.jobs))
	if len(keys) == 0 {
		return nil
	}
	return h.jobs[keys[h.rng.IntN(len(keys))]]
}

// event does one thing that users, operators or Nomad do.
func (h *modelRun) event(ctx context.Context) {
	j := h.any()
	kind := h.rng.IntN(12)
	if j == nil {
		kind = 0
	}
	h.log = append(h.log, fmt.Sprintf("%s event %d", time.Now().Format("04:05"), kind))
	switch kind {
	case 0, 1, 2, 3, 4:
		raw := h.job()
		h.log = append(h.log, "  submit "+string(raw))
		h.submit(ctx, raw)
	case 5: // around the service
		device := `{"Name":"nvidia/slice","Count":` + []string{"16", "8"}[h.rng.IntN(2)] + `}`
		raw := strings.Replace(strings.Replace(string(h.job()), `"Resources":{`, `"Resources":{"Devices":[`+device+`],`, 1), `"gpu"`, `"other"`, 1)
		raw = strings.Replace(raw, `"gpu_gang"`, `"gang"`, 1)
		h.log = append(h.log, "  direct "+raw)
		h.register(json.RawMessage(raw))
	case 6, 7: // the job ends
		h.log = append(h.log, "  stop "+j.key.String())
		stopped := true
		j.job.Stop = &stopped
		h.index++
		*j.job.JobModifyIndex = h.index
		h.tell(nomad.Change{Job: nomad.NewJob(j.job, nomad.Hardware{})})
		h.schedule()
	case 8: // a revert, around the service
		n := h.rng.IntN(len(j.versions))
		h.log = append(h.log, fmt.Sprintf("  revert %s to %d of %d", j.key, n, len(j.versions)))
		h.register(j.versions[n])
	case 9:
		for path := range h.store.items {
			if strings.HasPrefix(path, "nomad-gpu/decisions/") && h.rng.IntN(2) == 0 {
				delete(h.store.items, path)
			}
		}
	case 10:
		h.lead(ctx)
	case 11:
		time.Sleep(time.Duration(h.rng.IntN(300)) * time.Second)
		h.book.Heard()
	}
}

// used is what a namespace holds, in slices.
func (h *modelRun) used(namespace string) int {
	n := 0
	for _, a := range h.allocs {
		if a.stub.Namespace == namespace {
			for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
				n += len(d.DeviceIDs)
			}
		}
	}
	return n
}

// check holds what must be true once nothing has happened for a while.
func (h *modelRun) check(seed uint64) {
	if n := h.used("a"); n > 32 {
		h.t.Errorf("seed %d: queue a holds %d slices of at most 32", seed, n)
	}
	for _, name := range slices.Sorted(maps.Keys(h.jobs)) {
		j := h.jobs[name]
		g := j.job.TaskGroups[0]
		live := 0
		for _, a := range h.allocs {
			if a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.stopping == 0 {
				live++
			}
		}
		if g.Tasks[0].Meta["gpu_gang"] == "true" && live != 0 && live != *g.Count {
			h.t.Errorf("seed %d: %d of %d of the gang %s run", seed, live, *g.Count, name)
		}
		if len(j.blocked) == 0 {
			continue
		}
		// What waits alone, and would fit an empty cluster, has no reason to.
		need := 0
		for _, d := range g.Tasks[0].Resources.Devices {
			need += int(*d.Count) * *g.Count
		}
		if len(h.allocs) == 0 && h.waiting() == 1 && (j.key.Namespace != "a" || need <= 32) {
			h.t.Errorf("seed %d: %s waits although nothing runs: %v", seed, name, constraintsOf(g))
		}
	}
	if h.t.Failed() {
		h.t.Log(strings.Join(h.log, "\n"))
		for _, j := range h.jobs {
			h.t.Logf("%s: blocked %v, %v", j.key, j.blocked, constraintsOf(j.job.TaskGroups[0]))
		}
	}
}

func (h *modelRun) waiting() int {
	n := 0
	for _, j := range h.jobs {
		if len(j.blocked) > 0 {
			n++
		}
	}
	return n
}

func constraintsOf(g *api.TaskGroup) []string {
	var list []string
	for _, c := range g.Constraints {
		list = append(list, c.LTarget+" "+c.Operand+" "+c.RTarget)
	}
	return list
}

// TestRandomHistories drives the service beside a model of Nomad through random
// submissions, reverts, stops, lost Variables, changes of leaders, jumps of time
// and jobs that go around it. After each quiet time no queue is above its bound,
// no gang runs in part, nothing is evicted any more, and what waits alone runs.
func TestRandomHistories(t *testing.T) {
	histories := uint64(40)
	if testing.Short() {
		histories = 5
	}
	for seed := range histories {
		synctest.Test(t, func(t *testing.T) {
			c, err := config.Parse("model.hcl", []byte(modelConfig))
			if err != nil {
				t.Fatal(err)
			}
			h := &modelRun{model: newModel(t, 3, 2), rng: rand.New(rand.NewPCG(seed, 7)), store: &variables{items: map[string]nomad.Item{}}, config: c}
			h.lead(t.Context())
			for range 6 {
				for range 1 + h.rng.IntN(5) {
					h.event(t.Context())
					for range h.rng.IntN(4) {
						h.second(t.Context())
					}
				}
				for range 300 {
					h.second(t.Context())
				}
				before := h.started
				for range 150 {
					h.second(t.Context())
				}
				if h.started != before {
					t.Errorf("seed %d: %d allocs were started although nothing happened", seed, h.started-before)
				}
				if h.check(seed); t.Failed() {
					return
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}
