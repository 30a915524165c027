// SPDX-License-Identifier: MPL-2.0

// Package servicetest is one replica of the placement service without its HTTP side,
// for tests: a state, a decider on Variables in memory, and what finds work. The test
// plays Nomad.
package servicetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reconcile"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Machine is a node with GPUs of 16 slices of 1 GiB each.
func Machine(name string, gpus int) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	for i := range gpus {
		n.NodeResources.Devices = append(n.NodeResources.Devices, SlicedGPU(name, i, 16))
	}
	return nomad.NewNode(n, nomad.Hardware{})
}

// SeatMachine is a machine of GPUs as Machine has them, and behind them of GPUs of
// 16 GiB with four seats each: tasks step aside for each other there, with priorities up to
// one.
func SeatMachine(name string, gpus, seated, priority int) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	for i := range gpus + seated {
		d := SlicedGPU(name, i, 16)
		if i >= gpus {
			highest := int64(priority)
			suspend := string(gpu.SharingSuspend)
			d.Type, d.Instances = "shared", d.Instances[:4]
			d.Attributes["sharing"], d.Attributes["seat_priority"] = &api.Attribute{StringVal: &suspend}, &api.Attribute{IntVal: &highest}
			delete(d.Attributes, "slices")
			delete(d.Attributes, "slice_memory")
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return nomad.NewNode(n, nomad.Hardware{})
}

// SlicedGPU is a device group of one GPU.
func SlicedGPU(machine string, index, slices int) *api.NodeDeviceResource {
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
		d.Instances = append(d.Instances, &api.NodeDevice{ID: Instance(machine, index, i), Healthy: true})
	}
	return d
}

// Instance is the ID of a slice.
func Instance(machine string, index, slice int) string {
	return fmt.Sprintf("GPU-%s-%d::%d", machine, index, slice)
}

// Clock is a clock that stands still until it is moved.
type Clock struct{ At time.Time }

// Now is what time it is.
func (c *Clock) Now() time.Time { return c.At }

// Service is a replica that leads.
type Service struct {
	*leader.Decider
	*reconcile.Finder
	State *state.State
	Clock *Clock
	Store *nomadtest.Store
	Index uint64
}

// New returns a service with a configuration, that knows some machines.
func New(t testing.TB, text string, machines ...*nomad.Node) *Service {
	t.Helper()
	c, err := config.Parse("test.hcl", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Finder: reconcile.NewFinder(), Clock: &Clock{time.Unix(1_800_000_000, 0)}, Store: nomadtest.NewStore(), Index: 10}
	s.State = state.New(c, s.Clock.Now)
	s.State.Heard()
	var changes []nomad.Change
	for _, n := range machines {
		changes = append(changes, nomad.Change{Node: n})
	}
	s.State.Apply(changes, 1)
	s.Decider = leader.New(s.State, s.Store, func() bool { return true })
	return s
}

// Next is the next action on jobs that skip does not name.
func (s *Service) Next(skip map[string]bool, mayEvict bool) (item *reconcile.Item) {
	s.State.Do(func(tx *state.Tx) { item = s.Finder.Next(tx, skip, mayEvict) })
	return item
}

// Moves is what would pay to be moved.
func (s *Service) Moves(most int) (list []reconcile.Move) {
	s.State.Do(func(tx *state.Tx) { list = s.Finder.Moves(tx, most) })
	return list
}

// Relief is what to move for what waits.
func (s *Service) Relief(most int) (item *reconcile.Item) {
	s.State.Do(func(tx *state.Tx) { item = s.Finder.Relief(tx, most) })
	return item
}

// Expire ends what will no longer be kept.
func (s *Service) Expire() (gone []*record.Reservation) {
	s.State.Do(func(tx *state.Tx) { gone = tx.Expire() })
	return gone
}

// AllAssumed lists the allocs that are promised.
func (s *Service) AllAssumed() (list []state.Assumed) {
	s.State.View(func(r *state.Reader) { list = r.Capacity.AllAssumed() })
	return list
}

// Assume books what a promise is about.
func (s *Service) Assume(p decide.Promise) { s.State.Do(p.Assume) }

// Alloc is a copy of an alloc.
func (s *Service) Alloc(id string) (a nomad.Alloc) {
	s.State.View(func(r *state.Reader) { a = *r.Cluster.Alloc(id) })
	return a
}

// Job is a copy of a job.
func (s *Service) Job(key nomad.JobKey) (j nomad.Job) {
	s.State.View(func(r *state.Reader) { j = *r.Cluster.Job(key) })
	return j
}

// Cluster is what people see.
func (s *Service) Cluster(t testing.TB) (c *view.Cluster) {
	t.Helper()
	var err error
	if s.State.View(func(r *state.Reader) { c, err = show.Cluster(r) }); err != nil {
		t.Fatal(err)
	}
	return c
}

// Record is the decision about a job; nil: none.
func (s *Service) Record(key nomad.JobKey) (known *record.Record) {
	s.State.View(func(r *state.Reader) { known = r.Queue.Record(key) })
	return known
}

// Pass lets time go by, with Nomad heard.
func (s *Service) Pass(d time.Duration) {
	s.Clock.At = s.Clock.At.Add(d)
	s.State.Heard()
}

// Ask is a group with one task.
func Ask(job, request string, count int) admit.Ask {
	r, err := gpu.ParseRequest(request)
	if err != nil {
		panic(err)
	}
	return admit.Ask{
		Namespace: "default", JobID: job, JobType: "service", Priority: 50, Group: "g", Count: count, NodePool: "default",
		Datacenters: []string{"*"}, CPUMHz: 100, MemoryMiB: 100, Tasks: []admit.TaskAsk{{Task: "t", Driver: "containerd", Request: r}},
	}
}

// Submit has a job decided about, and Nomad take it.
func (s *Service) Submit(t testing.TB, a admit.Ask) admit.Decision {
	t.Helper()
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	return d[0]
}

// Register shows a job to the service, as Nomad would once it was admitted.
func (s *Service) Register(a admit.Ask) {
	s.Show(a, true)
}

// Show shows a job with what the service recorded, or as it came around the service.
func (s *Service) Show(a admit.Ask, admitted bool) {
	s.Index++
	task := nomad.Task{Name: "t", LimitMilli: a.Tasks[0].LimitMilli}
	for _, d := range a.Tasks[0].Devices {
		task.Devices = append(task.Devices, nomad.DeviceAsk{Name: d.Name, Count: d.Count})
	}
	if !a.Tasks[0].Plain() {
		task.Request = a.Tasks[0].Request.String()
	}
	key := nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}
	group := nomad.Group{Name: a.Group, Count: a.Count, Queue: a.Queue, Tasks: []nomad.Task{task}, Key: a.Key(), Registered: a.Registered(), Gang: a.Gang, TimeLimit: a.TimeLimit}
	if r := s.Record(key); admitted && r != nil {
		group.Registered = r.Groups[a.Group].Fingerprint
		group.Was = WasOf(r.Groups[a.Group].Decision)
		if decided := r.Groups[a.Group].Decision.Tasks; len(decided) > 0 {
			group.Tasks[0].SeatPriority = decided[0].SeatPriority
			useBlocks(&group.Tasks[0], decided[0].Devices)
		}
	}
	if group.Was == nil {
		group.Ask = &a
	}
	s.State.Apply([]nomad.Change{{Job: &nomad.Job{
		Index: s.Index, Key: key, Type: a.JobType, Priority: a.Priority, GPU: true, Groups: []nomad.Group{group},
	}}}, s.Index)
}

// useBlocks gives a task the device blocks that an admission wrote; none: it keeps its own.
func useBlocks(t *nomad.Task, blocks []admit.Device) {
	if len(blocks) > 0 {
		t.Devices = nil
	}
	for _, d := range blocks {
		t.Devices = append(t.Devices, nomad.DeviceAsk{Name: d.Name, Count: d.Count})
	}
}

// WasOf is what an admission leaves in a job.
func WasOf(d admit.Decision) *admit.Earlier {
	was := &admit.Earlier{Candidates: d.Candidates, Slots: d.Slots, Preferred: d.Preferred, Tasks: d.Tasks}
	if d.Hold != nil {
		was.Hold = d.Hold.Kind + ": " + d.Hold.Sentence
	}
	return was
}

// KeyOf is the job of an ask.
func KeyOf(a admit.Ask) nomad.JobKey { return nomad.JobKey{Namespace: a.Namespace, ID: a.JobID} }

// Reread is the ask of a job as it is read from Nomad after a decision.
func Reread(a admit.Ask, d admit.Decision) admit.Ask {
	a.Was = WasOf(d)
	return a
}

// Run shows an alloc of the job with some slices of a GPU.
func (s *Service) Run(a admit.Ask, id, machine string, index, from, slices int) {
	s.Index++
	alloc := &nomad.Alloc{
		Index: s.Index, ID: id, Namespace: a.Namespace, Job: a.JobID, Group: a.Group, NodeID: "id-" + machine, NodeName: machine,
		Status: "running", Healthy: true, Created: s.Clock.At, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
	}
	if slices > 0 {
		d := nomad.TaskDevices{Task: "t", Group: fmt.Sprintf("nvidia/slice/T4/%d", index)}
		for i := range slices {
			d.IDs = append(d.IDs, Instance(machine, index, from+i))
		}
		alloc.Devices = []nomad.TaskDevices{d}
	}
	s.State.Apply([]nomad.Change{{Alloc: alloc}}, s.Index)
}

// Block shows that Nomad cannot place some allocs of the job.
func (s *Service) Block(a admit.Ask, missing int) {
	s.Index++
	s.State.Apply([]nomad.Change{{Blocked: &nomad.Blocked{
		Index: s.Index, EvalID: "e-" + a.JobID, Key: nomad.JobKey{Namespace: a.Namespace, ID: a.JobID},
		Missing: map[string]int{a.Group: missing}, Since: s.Clock.At,
	}}}, s.Index)
}

// End shows that an alloc is over.
func (s *Service) End(id string) {
	a := s.Alloc(id)
	s.Index++
	a.Index, a.Status, a.Ended = s.Index, api.AllocClientStatusComplete, s.Clock.At
	s.State.Apply([]nomad.Change{{Alloc: &a}}, s.Index)
}
