// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/datafile"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

var errKilled = errors.New("killed")

// mortal is a machine whose plugin is killed at its n-th step: a call that changes the GPU, or a
// write, before it or after it.
type mortal struct {
	t        *testing.T
	dir      string
	topology *sim.Topology
	machine  *sim.Machine
	backend  *nvidia.Backend
	preparer *Preparer
	left     atomic.Int64
	killed   atomic.Bool
	now      time.Time
	client   plan.Client
	// plugin is the process that is the plugin, and is killed; nil where this one is.
	plugin *mortalProcess
	// dies ends this process, as SIGKILL does, in place of an error.
	dies bool
}

func (m *mortal) stepped() {
	if m.left.Add(-1) == 0 {
		if m.dies {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		m.killed.Store(true)
		panic(errKilled)
	}
}

// recovered turns a kill into an error.
func recovered(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errKilled {
				panic(r)
			}
			err = errKilled
		}
	}()
	return f()
}

var changing = []string{"CreateGpuInstance", "CreateComputeInstance", "GpuInstanceDestroy", "ComputeInstanceDestroy"}

// start is the plugin's, also after a kill; it lives for some steps.
func (m *mortal) start(steps int64) {
	if m.plugin != nil {
		m.plugin.start(m, steps)
		m.killed.Store(false)
		return
	}
	if m.backend != nil {
		m.backend.Close()
	}
	machine, err := sim.New(m.topology, sim.Options{Dir: m.dir + "/sim", BootID: "boot", Called: func(call string) {
		if slices.Contains(changing, call) {
			m.stepped()
		}
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.machine, m.backend = machine, nvidia.New(machine, time.Minute)
	c := testConfig(m.t, "gpu {\n mode = \"mig\"\n layout = \"demand\"\n demand {\n per_day = 1000\n }\n}")
	p := &Preparer{Options: Options{Log: hclog.NewNullLogger(), Report: func(string, error) {}, Config: c, Now: func() time.Time { return m.now }, Daemons: noDaemons{},
		Platform: &fleet.Platform{Observer: onlyProcesses{m: m}, Recutter: mortalRecutter{m.backend}, Partitioner: m.backend}}}
	p.background = newBackground(func() {}, p.Now)
	p.faults = faultClock{now: p.Now}
	p.faults.begin()
	c.DataDir = m.dir
	if p.demands, err = openDemands(m.dir); err != nil {
		m.t.Fatal(err)
	}
	p.demands.write = func(path string, f demandsFile, before []byte) ([]byte, error) {
		m.stepped()
		text, err := datafile.Write(path, f, before)
		if string(text) != string(before) {
			m.stepped()
		}
		return text, err
	}
	m.preparer = p
	m.left.Store(steps)
	m.killed.Store(false)
}

type noDaemons struct{ Daemons }

func (noDaemons) Server(int) bool { return false }

type onlyProcesses struct {
	fleet.Observer
	m *mortal
}

func (o onlyProcesses) Processes(owner, uuid string) ([]hardware.Process, error) {
	return o.m.backend.Processes(owner, uuid)
}

// mortalRecutter hands a kill on, in whichever goroutine it strikes.
type mortalRecutter struct{ *nvidia.Backend }

func (r mortalRecutter) Recut(uuid string, remove, add []gpu.MIGPlace) error {
	return recovered(func() error { return r.Backend.Recut(uuid, remove, add) })
}

// pass is one of the reconciler; it returns the instances that take new work, by UUID, and
// whether all orders have come to an end.
func (m *mortal) pass() (open []string, rest bool) {
	m.now = m.now.Add(6 * time.Second)
	if m.plugin != nil {
		return m.plugin.pass(m)
	}
	machine, err := m.backend.Survey()
	if err != nil {
		m.t.Fatal(err)
	}
	inputs := quiet()
	inputs.Client, inputs.LeasesReadAt = &m.client, m.now
	units := plan.Units(m.preparer.Config, testRegistry(), machine, inputs)
	if err := recovered(func() error { m.preparer.followDemand(units, inputs); return nil }); err != nil {
		m.preparer.Wait()
		return nil, false
	}
	m.preparer.Wait()
	rest = true
	for _, u := range units {
		if u.Instance != nil && u.Cordon == "" {
			open = append(open, u.UUID)
		}
		if u.Instance == nil {
			rest = u.Demand != nil && u.Demand.Doing == "" && u.Cordon == ""
		}
	}
	return open, rest
}

// numbers are the instances that are there, by UUID, with the number that NVML gave them: one that was
// removed and made again has another.
func (m *mortal) numbers() map[string]int {
	machine, err := m.backend.Survey()
	if err != nil {
		m.t.Fatal(err)
	}
	all := map[string]int{}
	for _, p := range machine.GPUs[0].Partitions {
		all[p.UUID] = p.GI
	}
	return all
}

// whole fails where a GPU instance has no device.
func (m *mortal) whole(what string) {
	d, _ := m.machine.DeviceGetHandleByUUID(m.topology.UUID(0))
	instances := 0
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(id)
		if ret != nvml.SUCCESS {
			continue
		}
		found, _ := d.GetGpuInstances(&info)
		instances += len(found)
	}
	if devices := len(m.numbers()); devices != instances || devices == 0 {
		m.t.Fatalf("%s: the GPU has %d GPU instances and %d devices", what, instances, devices)
	}
}

// record is what the plugin has on disk of the GPU.
func (m *mortal) record() *demandRecord {
	d, err := openDemands(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}
	return d.of(m.topology.UUID(0))
}

// draws is how many histories are tried: NOMAD_GPU_DRAWS, or a few.
func draws(few int) int {
	if n, err := strconv.Atoi(os.Getenv("NOMAD_GPU_DRAWS")); err == nil {
		return n
	}
	return few
}

// A plugin that is killed at any step goes on, or undoes what it began: no instance in use or
// reserved is ever removed, none is left without a device, and the GPU takes work again.
func TestARecutSurvivesKills(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range draws(60) {
		mortalHistory(t, seed, false, outcomes)
	}
	checkOutcomes(t, outcomes)
}

// The same is so where the plugin is a process of its own, and kill -9 ends it.
func TestARecutSurvivesKillsOfItsProcess(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range draws(12) {
		mortalHistory(t, seed, true, outcomes)
	}
	checkOutcomes(t, outcomes)
}

func checkOutcomes(t *testing.T, outcomes map[string]int) {
	t.Helper()
	t.Log(outcomes)
	if outcomes["cut"] == 0 || outcomes["killed"] == 0 {
		t.Errorf("not all was tried: %v", outcomes)
	}
}

// mortalHistory is one history of a GPU and an order, whose plugin is killed. With real it is a
// process.
func mortalHistory(t *testing.T, seed int, real bool, outcomes map[string]int) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(seed), 7))
	model := []string{"H100", "A100-40GB", "A30", "B200"}[random.IntN(4)]
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"m\" {}\ngpu { model = \""+model+"\" }"))
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{t: t, dir: tmpfs.Dir(t), topology: topology, now: time.Unix(1_800_000_000, 0)}
	m.client = plan.Client{Devices: map[string]string{}, Orders: map[string]string{}}
	m.start(1 << 40)
	if err := m.backend.Layout(topology.UUID(0), nil); err != nil {
		t.Fatal(err)
	}
	profiles, _, err := m.backend.MIGPlaces(topology.UUID(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.backend.Recut(topology.UUID(0), nil, anyLayout(random, profiles, nil)); err != nil {
		t.Fatal(err)
	}
	m.start(1 << 40)
	m.pass()
	// Some instances are in use: their UUIDs with NVML's number.
	held := map[string]int{}
	hold := func(open []string) {
		all := m.numbers()
		for _, uuid := range open {
			if random.IntN(3) == 0 && m.client.Devices[uuid] == "" {
				if all[uuid] == 0 {
					t.Fatalf("seed %d: instance %s takes work and is not there", seed, uuid)
				}
				m.client.Devices[uuid], held[uuid] = "alloc", all[uuid]
			}
		}
	}
	open, _ := m.pass()
	hold(open)
	_, there, err := m.backend.MIGPlaces(topology.UUID(0))
	if err != nil {
		t.Fatal(err)
	}
	// An order that removes some free instances, and sometimes one in use.
	o := gpu.MIGOrder{Version: 1, ID: fmt.Sprint("order-", seed)}
	var stay []gpu.MIGPlace
	for _, i := range there {
		if held[i.UUID] == 0 || random.IntN(20) == 0 {
			o.Remove = append(o.Remove, i.UUID)
		} else {
			stay = append(stay, i.MIGPlace)
		}
	}
	for _, at := range anyLayout(random, profiles, stay) {
		if !slices.ContainsFunc(there, func(i gpu.MIGInstance) bool { return i.MIGPlace == at }) {
			o.Make = append(o.Make, at)
		}
	}
	if len(o.Make) == 0 {
		return
	}
	m.client.Orders[topology.UUID(0)] = o.String()
	rest := false
	if real {
		m.plugin = &mortalProcess{model: model}
		defer m.plugin.end()
	}
	m.start(1 + random.Int64N(24))
	for passes := 0; !rest || passes < 3; passes++ {
		if passes > 60 {
			t.Fatalf("seed %d: the GPU is not at rest: %+v", seed, m.record())
		}
		if m.killed.Load() {
			outcomes["killed"]++
			steps := int64(1 << 40)
			if random.IntN(2) == 0 {
				steps = 1 + random.Int64N(12)
			}
			m.start(steps)
		}
		open, rest = m.pass()
		if random.IntN(4) == 0 && !m.killed.Load() {
			hold(open) // tasks start on whatever takes work
		}
		now := m.numbers()
		for uuid, number := range held {
			if now[uuid] != number {
				t.Fatalf("seed %d: instance %s is in use and was number %d, it is %d now", seed, uuid, number, now[uuid])
			}
		}
	}
	m.whole(fmt.Sprint("seed ", seed))
	r := m.record()
	switch {
	case r.Refused != "":
		outcomes["refused"]++
	case len(r.Cuts) == 1:
		outcomes["cut"]++
	default:
		t.Fatalf("seed %d: it came to %+v", seed, r)
	}
	m.backend.Close()
}

// Nomad hears of a cordon before a GPU is cut, also where the order before was taken back while
// its own cordon stood.
func TestEachOrderWaitsForItsOwnCordon(t *testing.T) {
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"m\" {}\ngpu { model = \"H100\" }"))
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{t: t, dir: tmpfs.Dir(t), topology: topology, now: time.Unix(1_800_000_000, 0)}
	uuid := topology.UUID(0)
	m.client = plan.Client{Devices: map[string]string{}, Orders: map[string]string{}}
	m.start(1 << 40)
	if err := m.backend.Layout(uuid, []string{"3g.40gb"}); err != nil {
		t.Fatal(err)
	}
	m.pass()
	_, there, err := m.backend.MIGPlaces(uuid)
	if err != nil || len(there) != 1 {
		t.Fatal(there, err)
	}
	phaseAfter := func(passes int) phase {
		for range passes {
			m.pass()
		}
		return m.preparer.demands.of(uuid).Phase
	}
	order := gpu.MIGOrder{Version: 1, ID: "first", Remove: []string{there[0].UUID}, Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: there[0].Start}}}
	m.client.Orders[uuid] = order.String()
	if now := phaseAfter(2); now != cordonGPU {
		t.Fatalf("an order was given: %q", now)
	}
	delete(m.client.Orders, uuid)
	if now := phaseAfter(10); now != atRest {
		t.Fatalf("it was taken back: %q", now)
	}
	order.ID = "second"
	m.client.Orders[uuid] = order.String()
	if now := phaseAfter(2); now != cordonGPU {
		t.Errorf("another was given: %q", now)
	}
}

// anyLayout draws instances that fit beside others.
func anyLayout(random *rand.Rand, profiles []gpu.MIGProfile, beside []gpu.MIGPlace) []gpu.MIGPlace {
	var drawn []gpu.MIGPlace
	for range 12 {
		p := profiles[random.IntN(len(profiles))]
		at := gpu.MIGPlace{Profile: p.Name, Start: p.Starts[random.IntN(len(p.Starts))]}
		all := slices.Concat(beside, drawn, []gpu.MIGPlace{at})
		if p.Name == gpuPlain(p.Name) && gpu.CheckMIGPlaces(profiles, all) == nil {
			drawn = append(drawn, at)
		}
	}
	return drawn
}

// gpuPlain is a profile's name without what follows its size.
func gpuPlain(name string) string {
	for n, r := range name {
		if r == '+' || r == '-' {
			return name[:n]
		}
	}
	return name
}
