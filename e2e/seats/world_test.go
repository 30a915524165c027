// SPDX-License-Identifier: MPL-2.0

// Package seats crosses the gap between the driver's seats and the plugin's way to
// suspend processes: the controller of the one over the program of the other, on a
// simulated GPU whose CUDA has every hazard of the original.
package seats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// program is a task with its processes.
type program struct {
	seats.Task
	pids []int
	mib  map[int]uint64
	// limit is its control group's in bytes, most the memory in MiB that it ever takes.
	limit, most int64
	// busyUntil is how long it computes; after that it is idle until idleUntil.
	busyUntil, idleUntil time.Time
	lost                 string
	// mayBeLost tasks are not well meant; inUse is how many bytes of their limit they use
	// beside what is on the host.
	mayBeLost bool
	inUse     int64
	awaySince time.Time
	turns     int
}

// world is a machine, its tasks, a driver that can die, and programs of the plugin that
// can be killed in any call.
type world struct {
	t        *testing.T
	random   *rand.Rand
	dir      string
	uuid     string
	machine  *sim.Machine
	backend  *nvidia.Backend
	now      time.Time
	rules    seats.Rules
	programs map[string]*program
	nextPID  int

	controller *seats.Controller
	saved      gpu.Seats
	// killIn counts calls of CUDA until the program is killed there, driverIn calls of the
	// Host until the driver is; negative is never. kills counts both.
	killIn, driverIn, kills int
	// wishful tasks ask to step aside, and to come back, at any time.
	wishful bool
	said    []string

	// What hostile programs do: some are stopped, and take or give back memory just then.
	stopped       map[int]bool
	beforeList    func()
	beforeLock    func()
	beforeRestore func(pid int)
}

var (
	errProgramKilled = errors.New("the program was killed")
	errDriverKilled  = errors.New("the driver was killed")
)

func newWorld(t *testing.T, seed uint64, rules seats.Rules) *world {
	t.Helper()
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, seed)), dir: t.TempDir(), now: time.Unix(1e9, 0), rules: rules,
		programs: map[string]*program{}, nextPID: 1 << 23, killIn: -1, driverIn: -1}
	file := filepath.Join(w.dir, "machine.hcl")
	if err := os.WriteFile(file, []byte("machine \"m\" { driver = \"580.82.07\" }\ngpu { model = \"H100\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	topology, err := sim.ReadTopology(file, "")
	if err != nil {
		t.Fatal(err)
	}
	w.uuid = topology.UUID(0)
	w.machine, err = sim.New(topology, sim.Options{Dir: w.dir, BootID: "boot", HostRoom: w.hostRoom})
	if err != nil {
		t.Fatal(err)
	}
	w.backend = nvidia.New(w.machine, time.Minute)
	t.Cleanup(w.backend.Close)
	w.startDriver()
	return w
}

// hostRoom is what the control group of a process has left.
func (w *world) hostRoom(pid int) uint64 {
	for _, p := range w.sorted() {
		if _, mine := p.mib[pid]; mine {
			return uint64(max(0, p.limit-w.onHost(p)<<20))
		}
	}
	return 0
}

// onHost is what of a program is on the host, in MiB.
func (w *world) onHost(p *program) int64 {
	states, err := sim.ReadProcessStates(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	sum := int64(0)
	for pid, mib := range p.mib {
		if states[pid] == gpu.ProcessCheckpointed {
			sum += int64(mib)
		}
	}
	return sum
}

func (w *world) startDriver() {
	w.controller = &seats.Controller{UUID: w.uuid, Host: host{w}, Now: func() time.Time { return w.now }, Patience: func(int64) time.Duration { return time.Minute }}
	w.controller.Restore(w.saved)
}

// add starts a task whose program has so many processes and takes up to so much memory.
func (w *world) add(id string, priority int, declared, most int64, processes int) *program {
	p := &program{Task: seats.Task{LeaseID: id, StartedAt: w.now, Starting: true, Priority: priority, DeclaredMiB: declared}, most: most,
		limit: 1 << 30, mib: map[int]uint64{}, awaySince: w.now}
	for range processes {
		w.nextPID++
		p.pids = append(p.pids, w.nextPID)
	}
	w.programs[id] = p
	return p
}

func (w *world) end(id string) {
	delete(w.programs, id)
	w.writeProcesses()
}

// writeProcesses shows the GPU what the programs hold.
func (w *world) writeProcesses() {
	err := sim.Update(w.dir, w.uuid, func(c *sim.Condition) {
		c.Processes = nil
		for _, p := range w.sorted() {
			for _, pid := range p.pids {
				if mib, uses := p.mib[pid]; uses {
					c.Processes = append(c.Processes, sim.Process{PID: uint32(pid), MemoryMiB: mib, Percent: w.percent(p)})
				}
			}
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// sorted are the programs in one order: what is drawn at random is the same in every run.
func (w *world) sorted() []*program {
	var list []*program
	for _, id := range slices.Sorted(maps.Keys(w.programs)) {
		list = append(list, w.programs[id])
	}
	return list
}

func (w *world) percent(p *program) uint32 {
	if w.now.Before(p.busyUntil) {
		return 50
	}
	return 0
}

// live lets the programs that may use CUDA take memory, compute, and rest.
func (w *world) live() {
	states, err := sim.ReadProcessStates(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	changed := false
	for _, p := range w.sorted() {
		if p.Starting {
			continue
		}
		for _, pid := range p.pids {
			if state := states[pid]; state != "" && state != gpu.ProcessRunning || w.random.IntN(4) > 0 {
				continue
			}
			took := int64(0)
			for _, mib := range p.mib {
				took += int64(mib)
			}
			more := min(int64(w.random.IntN(400)), p.most-took, w.free())
			if more > 0 {
				p.mib[pid] += uint64(more)
				w.writeProcesses()
			}
		}
		if w.now.After(p.idleUntil) {
			p.busyUntil = w.now.Add(time.Duration(w.random.IntN(200)) * time.Second)
			p.idleUntil = p.busyUntil.Add(time.Duration(w.random.IntN(200)) * time.Second)
			changed = true
		}
	}
	if changed || w.random.IntN(5) == 0 {
		w.writeProcesses()
	}
}

// grab lets programs take at once all that they ever will, if nothing holds them.
func (w *world) grab() {
	states, err := sim.ReadProcessStates(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range w.sorted() {
		for _, pid := range p.pids {
			if state := states[pid]; p.Starting || state != "" && state != gpu.ProcessRunning || w.random.IntN(8) > 0 {
				continue
			}
			took := int64(0)
			for _, mib := range p.mib {
				took += int64(mib)
			}
			if more := min(p.most-took, w.free()); more > 0 {
				p.mib[pid] += uint64(more)
				w.writeProcesses()
			}
		}
	}
}

func (w *world) free() int64 {
	r, err := w.backend.Reading(w.uuid, w.uuid)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.MemoryTotalMiB - r.MemoryUsedMiB
}

// device is what the plugin measures.
func (w *world) device() seats.Device {
	r, err := w.backend.Reading(w.uuid, w.uuid)
	if err != nil {
		w.t.Fatal(err)
	}
	processes, err := w.backend.Processes(w.uuid, w.uuid)
	if err != nil {
		w.t.Fatal(err)
	}
	reserved := r.MemoryReservedMiB
	d := seats.Device{CapacityMiB: r.MemoryTotalMiB - reserved, UsedMiB: r.MemoryUsedMiB - reserved, MeasuredAt: w.now, Rules: w.rules}
	for _, p := range w.sorted() {
		task := p.Task
		task.Measured, task.MeasuredMiB, task.Milli = true, 0, 0
		if w.wishful && w.random.IntN(10) == 0 {
			task.Wish = []seats.Wish{seats.WishYield, seats.WishWant}[w.random.IntN(2)]
		}
		for _, found := range processes {
			if _, mine := p.mib[found.PID]; mine {
				task.MeasuredMiB += found.MemoryMiB
				task.Milli += max(0, found.Milli)
			}
		}
		d.Tasks = append(d.Tasks, task)
	}
	return d
}

// step is one second, and the driver's work in it.
func (w *world) step() {
	w.now = w.now.Add(time.Second)
	w.live()
	w.check()
	d := w.device()
	func() {
		defer func() {
			if killed := recover(); killed != nil {
				if killed != any(errDriverKilled) {
					panic(killed)
				}
				w.kills++
				w.driverIn = -1
				w.startDriver()
			}
		}()
		if _, err := w.controller.Step(context.Background(), d); err != nil {
			w.t.Fatal(err)
		}
	}()
	w.check()
	for _, s := range w.controller.Seats() {
		p := w.programs[s.LeaseID]
		if p == nil {
			continue
		}
		if s.State == gpu.SeatResident {
			if !p.awaySince.IsZero() {
				p.turns++
			}
			p.awaySince = time.Time{}
			p.Starting = false
		} else if p.awaySince.IsZero() {
			p.awaySince = w.now
		}
	}
}

// check holds what must always hold, also between two calls of CUDA.
func (w *world) check() {
	states, err := sim.ReadProcessStates(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	sum := int64(0)
	for id, p := range w.programs {
		for _, pid := range p.pids {
			if states[pid] == gpu.ProcessFailed {
				w.t.Fatalf("process %d of %s is lost", pid, id)
			}
		}
		if p.lost != "" && !p.mayBeLost {
			w.t.Fatalf("task %s is lost: %s", id, p.lost)
		}
		sum += w.onHost(p)
	}
	if sum > w.rules.HostMiB {
		w.t.Fatalf("%d MiB are on the host, the bound is %d", sum, w.rules.HostMiB)
	}
	if free := w.free(); free < 0 {
		w.t.Fatalf("the GPU is overfull by %d MiB", -free)
	}
}

// host is what the controller acts on.
type host struct{ *world }

func (h host) died() {
	if h.driverIn == 0 {
		panic(errDriverKilled)
	}
	h.driverIn--
}

func (h host) Checkpoint(_ context.Context, r gpu.CheckpointRequest) (answer gpu.CheckpointAnswer, err error) {
	h.died()
	defer func() {
		if killed := recover(); killed != nil {
			if killed != any(errProgramKilled) {
				panic(killed)
			}
			h.kills++
			h.killIn, err = -1, errProgramKilled
			// Half of the time it took the driver with it.
			if h.random.IntN(2) == 0 {
				panic(errDriverKilled)
			}
		}
	}()
	h.now = h.now.Add(time.Duration(h.random.IntN(3)) * time.Second)
	h.grab()
	return checkpoint.Answer(&mortal{CUDA: stoppable{h.machine.CUDA(), h.world}, world: h.world}, memory(h), r)
}

func (h host) Processes(id string) ([]int, error) {
	h.died()
	if h.beforeList != nil {
		h.beforeList()
	}
	return h.programs[id].pids, nil
}

func (h host) MemoryLimit(id string) (int64, error) { h.died(); return h.programs[id].limit, nil }

func (h host) SetMemoryLimit(id string, bytes int64) error {
	h.died()
	if p := h.programs[id]; bytes>>20 >= h.onHost(p) && bytes >= p.inUse {
		p.limit = bytes
		return nil
	}
	return seats.ErrInUse
}

func (h host) Save(s gpu.Seats) error {
	h.died()
	h.saved = gpu.Seats{UUID: s.UUID, Seats: append([]gpu.Seat(nil), s.Seats...)}
	return nil
}

func (h host) Lost(id, reason string) { h.programs[id].lost = reason }

func (h host) Tell(id, message string) { h.said = append(h.said, id+" "+message) }

// mortal is CUDA in a program that is killed before some call, or after it.
type mortal struct {
	checkpoint.CUDA
	world *world
	dead  bool
}

func (m *mortal) call(do func() error) error {
	m.world.check()
	if m.world.killIn == 0 {
		m.dead = true
		if m.world.random.IntN(2) == 0 {
			_ = do()
		}
	}
	if m.dead {
		panic(errProgramKilled)
	}
	m.world.killIn--
	err := do()
	m.world.check()
	return err
}

func (m *mortal) Lock(pid int, d time.Duration) error {
	return m.call(func() error { return m.CUDA.Lock(pid, d) })
}
func (m *mortal) Checkpoint(pid int) error {
	return m.call(func() error { return m.CUDA.Checkpoint(pid) })
}
func (m *mortal) Restore(pid int) error { return m.call(func() error { return m.CUDA.Restore(pid) }) }
func (m *mortal) Unlock(pid int) error  { return m.call(func() error { return m.CUDA.Unlock(pid) }) }

// memory is as the plugin's program reads it, beside neighbors that go on taking more.
type memory struct{ *world }

func (m memory) Free(string) (int64, error) {
	m.grab()
	free := m.free()
	m.grab()
	return free, nil
}

func (m memory) Held(uuid string, pids []int) (int64, error) {
	sum := int64(0)
	processes, err := m.backend.Processes(uuid, uuid)
	for _, p := range processes {
		for _, pid := range pids {
			if p.PID == pid {
				sum += p.MemoryMiB
			}
		}
	}
	return sum, err
}

func (w *world) describe() string {
	text := ""
	for _, s := range w.controller.Seats() {
		text += fmt.Sprintf("%+v\n", s)
	}
	return text
}
