package decide

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// memory is a Store that behaves like Nomad Variables.
type memory struct {
	mu    sync.Mutex
	items map[string]nomad.Item
	index uint64
}

func newMemory() *memory { return &memory{items: map[string]nomad.Item{}} }

func (m *memory) Get(_ context.Context, path string) (nomad.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	item, ok := m.items[path]
	if !ok {
		return nomad.Item{Path: path}, nil
	}
	item.Values = maps.Clone(item.Values)
	return item, nil
}

func (m *memory) List(_ context.Context, prefix string) (map[string]uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[string]uint64{}
	for path, item := range m.items {
		if len(path) >= len(prefix) && path[:len(prefix)] == prefix {
			found[path] = item.Index
		}
	}
	return found, nil
}

func (m *memory) Put(_ context.Context, item nomad.Item) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.items[item.Path].Index != item.Index {
		return 0, fmt.Errorf("put: %w", nomad.ErrConflict)
	}
	size := 0
	for k, v := range item.Values {
		size += len(k) + len(v)
	}
	if size > 64<<10 { // as Nomad says it
		return 0, errors.New("variables are limited to 64KiB in total size")
	}
	m.index++
	item.Index = m.index
	m.items[item.Path] = item
	return m.index, nil
}

func (m *memory) Delete(_ context.Context, path string, index uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.items[path].Index != index {
		return fmt.Errorf("delete: %w", nomad.ErrConflict)
	}
	delete(m.items, path)
	return nil
}

// machine is a node with so many GPUs of 16 slices of 1 GiB each.
func machine(name string, gpus int) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	for i := range gpus {
		n.NodeResources.Devices = append(n.NodeResources.Devices, slicedGPU(name, i, 16))
	}
	return nomad.NewNode(n, nomad.Hardware{})
}

func slicedGPU(machine string, index, slices int) *api.NodeDeviceResource {
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	d := &api.NodeDeviceResource{
		Vendor: "nvidia", Type: "slice", Name: fmt.Sprintf("T4/%d", index),
		Attributes: map[string]*api.Attribute{
			"model": word("Tesla T4"), "type": word("T4"), "memory": number(16*1024, "MiB"), "slice_memory": number(1024, "MiB"),
			"slices": number(int64(slices), ""), "sharing": word("mps"),
		},
	}
	for i := range slices {
		d.Instances = append(d.Instances, &api.NodeDevice{ID: instance(machine, index, i), Healthy: true})
	}
	return d
}

func instance(machine string, index, slice int) string {
	return fmt.Sprintf("GPU-%s-%d::%d", machine, index, slice)
}

// clock is a clock that stands still until it is moved.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// bench is a decider with its surroundings.
type bench struct {
	*Decider
	clock *clock
	store *memory
	index uint64
}

func newBench(t testing.TB, text string, machines ...*nomad.Node) *bench {
	t.Helper()
	c, err := config.Parse("test.hcl", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{clock: &clock{time.Unix(1_800_000_000, 0)}, store: newMemory(), index: 10}
	book := NewBook(c, b.clock.now)
	book.Heard()
	var changes []nomad.Change
	for _, n := range machines {
		changes = append(changes, nomad.Change{Node: n})
	}
	book.Apply(changes, 1)
	b.Decider = NewDecider(book, b.store, func() bool { return true })
	return b
}

// ask is a group with one task.
func ask(job, request string, count int) admit.Ask {
	r, err := gpu.ParseRequest(request)
	if err != nil {
		panic(err)
	}
	return admit.Ask{
		Namespace: "default", JobID: job, JobType: "service", Priority: 50, Group: "g", Count: count, NodePool: "default",
		Datacenters: []string{"*"}, CPUMHz: 100, MemoryMiB: 100, Tasks: []admit.TaskAsk{{Task: "t", Driver: "containerd", Request: r}},
	}
}

func (b *bench) decide(t testing.TB, a admit.Ask) admit.Decision {
	t.Helper()
	d, err := b.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), []admit.Ask{a}, d, true)
	return d[0]
}

// register shows the job to the book, as Nomad would.
func (b *bench) register(a admit.Ask) {
	b.show(a, true)
}

func (b *bench) show(a admit.Ask, admitted bool) {
	b.index++
	task := nomad.Task{Name: "t"}
	for _, d := range a.Tasks[0].Devices {
		task.Devices = append(task.Devices, nomad.DeviceAsk{Name: d.Name, Count: d.Count})
	}
	if !a.Tasks[0].Plain() {
		task.Request = a.Tasks[0].Request.String()
	}
	key := nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}
	group := nomad.Group{Name: a.Group, Count: a.Count, Queue: a.Queue, Tasks: []nomad.Task{task}, Key: a.Key(), Registered: a.Registered(), Gang: a.Gang}
	if r := b.book.records[key]; admitted && r != nil {
		group.Registered = r.Groups[a.Group].print
		group.Was = wasOf(r.Groups[a.Group].Decision)
	}
	b.book.Apply([]nomad.Change{{Job: &nomad.Job{
		Index: b.index, Key: key, Type: a.JobType, Priority: a.Priority, GPU: true, Groups: []nomad.Group{group},
	}}}, b.index)
}

// wasOf is what an admission leaves in a job.
func wasOf(d admit.Decision) *admit.Earlier {
	was := &admit.Earlier{Candidates: d.Candidates, Preferred: d.Preferred, Tasks: d.Tasks}
	if d.Hold != nil {
		was.Hold = d.Hold.Kind + ": " + d.Hold.Sentence
	}
	return was
}

func keyOf(a admit.Ask) nomad.JobKey { return nomad.JobKey{Namespace: a.Namespace, ID: a.JobID} }

// reread is the ask of a job as it is read from Nomad after a decision.
func reread(a admit.Ask, d admit.Decision) admit.Ask {
	a.Was = wasOf(d)
	return a
}

// run shows an alloc of the job with some slices of a GPU.
func (b *bench) run(a admit.Ask, id, machine string, index, from, slices int) {
	b.index++
	alloc := &nomad.Alloc{
		Index: b.index, ID: id, Namespace: a.Namespace, Job: a.JobID, Group: a.Group, NodeID: "id-" + machine, NodeName: machine,
		Status: "running", Healthy: true, Created: b.clock.at, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
	}
	if slices > 0 {
		d := nomad.TaskDevices{Task: "t", Group: fmt.Sprintf("nvidia/slice/T4/%d", index)}
		for i := range slices {
			d.IDs = append(d.IDs, instance(machine, index, from+i))
		}
		alloc.Devices = []nomad.TaskDevices{d}
	}
	b.book.Apply([]nomad.Change{{Alloc: alloc}}, b.index)
}

// block shows that Nomad cannot place some allocs of the job.
func (b *bench) block(a admit.Ask, missing int) {
	b.index++
	b.book.Apply([]nomad.Change{{Blocked: &nomad.Blocked{
		Index: b.index, EvalID: "e-" + a.JobID, Key: nomad.JobKey{Namespace: a.Namespace, ID: a.JobID},
		Missing: map[string]int{a.Group: missing}, Since: b.clock.at,
	}}}, b.index)
}

// end shows that an alloc is over.
func (b *bench) end(id string) {
	a := *b.book.allocs[id]
	b.index++
	a.Index, a.Status = b.index, api.AllocClientStatusComplete
	b.book.Apply([]nomad.Change{{Alloc: &a}}, b.index)
}
