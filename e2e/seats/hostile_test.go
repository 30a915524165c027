// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seat is where a task is; empty for none.
func (w *world) seat(id string) gpu.Seat {
	for _, s := range w.controller.Seats() {
		if s.LeaseID == id {
			return s
		}
	}
	return gpu.Seat{}
}

// until lets the world go on until something is so, at most for some time.
func (w *world) until(what string, most time.Duration, done func() bool, each func()) {
	w.t.Helper()
	for since := w.now; !done(); w.step() {
		if w.now.Sub(since) > most {
			w.t.Fatalf("%s: not within %s:\n%s", what, most, w.describe())
		}
		if each != nil {
			each()
		}
	}
}

func (w *world) is(id string, state gpu.SeatState) func() bool {
	return func() bool { return w.seat(id).State == state }
}

// start starts a program of a task that takes memory at once.
func (w *world) start(p *program, mib uint64) {
	w.nextPID++
	p.pids = append(p.pids, w.nextPID)
	p.mib[w.nextPID] = mib
	w.writeProcesses()
}

// fill lets a task take all that it ever will, once it has a seat.
func (w *world) fill(p *program) {
	w.t.Helper()
	w.until(p.LeaseID+" has a seat", time.Minute, w.is(p.LeaseID, gpu.SeatResident), nil)
	p.mib[p.pids[0]] = uint64(p.most)
	w.writeProcesses()
	w.until(p.LeaseID+" was measured", time.Minute, func() bool { return w.seat(p.LeaseID).MemoryMiB == p.most }, nil)
}

// away is a world in which the task "hostile" was suspended for one of higher priority.
func away(t *testing.T) (w *world, hostile *program) {
	w = newWorld(t, 1, rules)
	hostile = w.add("hostile", 50, 40<<10, 40<<10, 1)
	w.fill(hostile)
	w.add("training", 80, 50<<10, 50<<10, 1)
	w.until("hostile is suspended", 5*time.Minute, w.is("hostile", gpu.SeatSuspended), nil)
	return w, hostile
}

// A task that was suspended, and starts programs on the GPU again and again, does not hold
// up others, and is ended: its turn is over.
func TestASuspendedTaskThatStartsProgramsHoldsUpNoOther(t *testing.T) {
	w, hostile := away(t)
	hostile.mayBeLost = true
	w.add("next", 50, 5<<10, 5<<10, 1)
	w.until("another task has a seat", 2*time.Minute, w.is("next", gpu.SeatResident), func() {
		if hostile.lost == "" {
			w.start(hostile, 256)
		} else if w.programs["hostile"] != nil {
			w.end("hostile") // as the driver does
		}
	})
	if hostile.lost == "" {
		t.Error("it was not ended")
	}
}

// One whose programs go on to start other programs, as a shell does, is not.
func TestASuspendedTaskMayStartAProgramNowAndThen(t *testing.T) {
	w, hostile := away(t)
	for n := range 30 {
		w.start(hostile, 64)
		for range 150 {
			w.step()
		}
		if hostile.lost != "" {
			t.Fatalf("it is lost after %d programs: %s", n, hostile.lost)
		}
	}
}

// What a suspended task starts while another comes back is held with the neighbors, and
// does not take the room that was found free.
func TestASuspendedTaskTakesNoRoomFromAnotherThatComesBack(t *testing.T) {
	w := newWorld(t, 1, rules)
	hostile := w.add("hostile", 25, 10<<10, 10<<10, 1)
	victim := w.add("victim", 50, 60<<10, 60<<10, 1)
	w.fill(hostile)
	w.fill(victim)
	w.add("training", 80, 70<<10, 70<<10, 1)
	w.until("both are away", 10*time.Minute, func() bool {
		return w.seat("hostile").State == gpu.SeatSuspended && w.seat("victim").State == gpu.SeatSuspended
	}, nil)
	w.end("training")
	stray, grabbed := 0, false
	w.beforeList = func() {
		if w.beforeList = nil; stray == 0 {
			w.start(hostile, 1)
			stray = hostile.pids[len(hostile.pids)-1]
		}
	}
	w.beforeRestore = func(pid int) {
		if states, err := sim.ReadProcessStates(w.dir); err != nil || states[stray] != "" && states[stray] != gpu.ProcessRunning || pid != victim.pids[0] {
			return
		}
		grabbed = true
		hostile.mib[stray] += uint64(w.free())
		w.writeProcesses()
	}
	w.until("the victim is back", 10*time.Minute, w.is("victim", gpu.SeatResident), nil)
	if grabbed {
		t.Error("the hostile program was not held")
	}
}

// A task whose program cannot be held, because it was stopped, does not keep another from
// coming back for ever.
func TestAProgramThatCannotBeHeldKeepsNoOtherAway(t *testing.T) {
	w := newWorld(t, 1, rules)
	hostile := w.add("hostile", 50, 5<<10, 5<<10, 1)
	hostile.mayBeLost = true
	victim := w.add("victim", 25, 40<<10, 40<<10, 1)
	w.fill(hostile)
	w.fill(victim)
	w.add("training", 80, 60<<10, 60<<10, 1)
	w.until("the victim is away", 10*time.Minute, w.is("victim", gpu.SeatSuspended), nil)
	w.stopped = map[int]bool{hostile.pids[0]: true}
	w.end("training")
	w.until("the victim is back", 30*time.Minute, w.is("victim", gpu.SeatResident), func() {
		if hostile.lost != "" {
			w.end("hostile") // as the driver does
		}
	})
	if w.seat("victim").State != gpu.SeatResident {
		t.Error("the victim is away")
	}
}

// The limit of a task's memory is no higher than what is on the host needs, and is what it
// was when the task is back, or the task ends.
func TestATaskDoesNotKeepTheLimitThatWasRaisedForIt(t *testing.T) {
	t.Run("memory that it gives back before it is held", func(t *testing.T) {
		w := newWorld(t, 1, rules)
		hostile := w.add("hostile", 50, 40<<10, 40<<10, 1)
		w.fill(hostile)
		w.beforeLock = func() {
			hostile.mib[hostile.pids[0]] = 100
			w.writeProcesses()
		}
		w.add("training", 80, 50<<10, 50<<10, 1)
		w.until("hostile is suspended", 5*time.Minute, w.is("hostile", gpu.SeatSuspended), nil)
		if got, most := hostile.limit>>20, int64(1<<10+100+1024+64); got > most {
			t.Errorf("its limit is %d MiB, want at most %d", got, most)
		}
	})
	t.Run("memory that it takes of the host's", func(t *testing.T) {
		w, hostile := away(t)
		hostile.mayBeLost, hostile.inUse = true, hostile.limit
		w.end("training")
		w.until("hostile is back", 10*time.Minute, w.is("hostile", gpu.SeatResident), nil)
		w.until("hostile is ended", 10*time.Minute, func() bool { return hostile.lost != "" }, nil)
	})
}

// stoppable is CUDA with programs that answer nothing.
type stoppable struct {
	checkpoint.CUDA
	world *world
}

func (s stoppable) Lock(pid int, d time.Duration) error {
	if s.world.beforeLock != nil {
		s.world.beforeLock()
	}
	if s.world.stopped[pid] {
		return fmt.Errorf("%w: it is stopped", checkpoint.ErrBusy)
	}
	return s.CUDA.Lock(pid, d)
}

func (s stoppable) Restore(pid int) error {
	if s.world.beforeRestore != nil {
		s.world.beforeRestore(pid)
	}
	return s.CUDA.Restore(pid)
}
