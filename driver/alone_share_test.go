// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// What was measured of a task on a device is its own, on that device: not what others use
// there, and not what it uses of another.
func TestWhatASeatWasMeasuredToUse(t *testing.T) {
	lease := gpu.Lease{ID: "mine", Phase: gpu.PhaseStarting, StartedAt: time.Unix(1e9, 0)}
	holding := gpu.Holding{UUID: gpuA, SeatPriority: 70, Share: gpu.Share{MemoryMiB: 40}}
	want := seats.Task{LeaseID: "mine", StartedAt: lease.StartedAt, Starting: true, Priority: 70, DeclaredMiB: 40}
	others := []gpu.TaskUsage{{LeaseID: "other", UUID: gpuA, MemoryMiB: 1, Milli: 2, Processes: 1}, {LeaseID: "mine", UUID: gpuB, MemoryMiB: 3, Milli: 4, Processes: 1}}
	must.Eq(t, want, seatTask(lease, holding, gpu.Usage{Tasks: others}))
	for _, row := range []struct{ processes, milli, want int64 }{{1, 500, 500}, {1, -1, -1}, {0, -1, 0}, {0, 5, 5}} {
		own := gpu.TaskUsage{LeaseID: "mine", UUID: gpuA, MemoryMiB: 30, Milli: row.milli, Processes: int(row.processes)}
		want.Measured, want.MeasuredMiB, want.Milli = true, 30, row.want
		must.Eq(t, want, seatTask(lease, holding, gpu.Usage{Tasks: []gpu.TaskUsage{others[0], own, others[1]}}))
	}
	must.Eq(t, seats.Rules{Idle: time.Second, MinTurn: 2 * time.Second, MaxWait: 3 * time.Second, SwitchPercent: 4, HeadroomMiB: 5, HostMiB: 6, RefuseFixed: true},
		rulesOf(gpu.SeatRules{IdleMS: 1000, MinTurnMS: 2000, MaxWaitMS: 3000, SwitchPercent: 4, HeadroomMiB: 5, HostMemoryMiB: 6, Unsuspendable: gpu.UnsuspendableRefuse}))
}

// Tasks with a seat on a device are those that live and hold one there; starts are among
// them when nothing else keeps them. What was measured long ago is not known.
func TestTasksWithASeat(t *testing.T) {
	d, env := alone(t)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10}}))
	for id, l := range map[string]gpu.Lease{
		"runs":    {Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuB, SeatMiB: 1}, {UUID: gpuA, SeatMiB: 1}}},
		"starts":  {Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}},
		"ended":   {Phase: gpu.PhaseEnded, Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}},
		"another": {Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuB, SeatMiB: 1}}},
		"no seat": {Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA}}},
	} {
		l.ID = id
		must.NoError(t, env.state.WriteLease(l))
	}
	now := func() (map[string]seats.Task, seats.Device) {
		t.Helper()
		device, err := d.seatsNow(env.state, gpuA)
		must.NoError(t, err)
		found := map[string]seats.Task{}
		for _, one := range device.Tasks {
			found[one.LeaseID] = one
		}
		return found, device
	}
	d.seats.ask("runs", seats.WishYield)
	d.seats.ask("runs", seats.WishWant)
	must.Eq(t, seats.WishWant, d.seats.asked("runs", false))
	tasks, device := now()
	must.MapLen(t, 1, tasks)
	must.Eq(t, seats.WishWant, tasks["runs"].Wish)
	must.Eq(t, 0, device.CapacityMiB)
	d.seats.setReady("starts", true)
	tasks, _ = now()
	must.MapLen(t, 2, tasks)
	must.Eq(t, "", tasks["runs"].Wish)
	must.True(t, tasks["starts"].Starting)
	d.seats.setReady("starts", false)
	tasks, _ = now()
	must.MapLen(t, 1, tasks)

	measured := gpu.Usage{MeasuredAt: time.Now(), Devices: []gpu.DeviceUsage{{UUID: gpuB, CapacityMiB: 1, UsedMiB: 2}, {UUID: gpuA, CapacityMiB: 300, UsedMiB: 200}}}
	must.NoError(t, env.state.WriteUsage(measured))
	_, device = now()
	must.Eq(t, 300, device.CapacityMiB)
	must.Eq(t, 200, device.UsedMiB)
	must.True(t, device.MeasuredAt.Equal(measured.MeasuredAt))
	measured.MeasuredAt = time.Now().Add(-usageMaxAge - time.Second)
	must.NoError(t, env.state.WriteUsage(measured))
	_, device = now()
	must.Eq(t, 0, device.CapacityMiB)
	must.True(t, device.MeasuredAt.IsZero())
}

// A task is told of its own share and use, and of its neighbors together: nothing of other
// GPUs, of tasks that have ended, or of what was measured before it began.
func TestWhatATaskIsToldOfItsShare(t *testing.T) {
	d, env := alone(t)
	began := time.Now().Add(-time.Minute)
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0, 1}, Share: gpu.Share{GuaranteeMilli: 100}}}})
	mine.record.StartedAt = began
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Model: "H100", MemoryMiB: 80, Slices: 16}))
	must.NoError(t, env.state.WriteLease(mine.record.Lease))
	for id, l := range map[string]gpu.Lease{
		"a":     {Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{GuaranteeMilli: 200}}, {UUID: gpuB, Share: gpu.Share{GuaranteeMilli: 999}}}},
		"b":     {Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{GuaranteeMilli: 300}}}},
		"ended": {Phase: gpu.PhaseEnded, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{GuaranteeMilli: 999}}}},
		"other": {Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuB, Share: gpu.Share{GuaranteeMilli: 999}}}},
	} {
		l.ID = id
		must.NoError(t, env.state.WriteLease(l))
	}
	usage := gpu.Usage{MeasuredAt: time.Now(), Tasks: []gpu.TaskUsage{
		{LeaseID: "mine", UUID: gpuA, MemoryMiB: 7, Milli: 70, Processes: 2}, {LeaseID: "mine", UUID: gpuB, MemoryMiB: 999},
		{LeaseID: "a", UUID: gpuA, MemoryMiB: 10, Milli: 20}, {LeaseID: "b", UUID: gpuA, MemoryMiB: 30, Milli: -1}, {LeaseID: "a", UUID: gpuB, MemoryMiB: 999}, {LeaseID: "ended", UUID: gpuA, MemoryMiB: 999, Milli: 999},
	}}
	must.NoError(t, env.state.WriteUsage(usage))
	one := func() gpu.SelfGPU {
		t.Helper()
		d.selfView.at = time.Time{} // it is read once a second
		answer := selfOf{d, mine}.Answer(t.Context(), gpu.SelfRequest{})
		must.Eq(t, "", answer.Error+answer.Message)
		must.Len(t, 1, answer.Status.GPUs)
		return answer.Status.GPUs[0]
	}
	g := one()
	must.Eq(t, gpu.SelfNeighbors{Tasks: 2, GuaranteeMilli: 500, MemoryMiB: 40, Milli: 20}, g.Neighbors)
	must.Eq(t, 7, g.Use.MemoryMiB)
	must.Eq(t, 70, g.Use.Milli)
	must.Eq(t, 2, g.Use.Processes)
	must.Eq(t, "H100", g.Model)
	must.False(t, g.Whole)
	must.Nil(t, g.Seat)
	usage.MeasuredAt = began.Add(-time.Second)
	usage.Tasks = usage.Tasks[3:4]
	must.NoError(t, env.state.WriteUsage(usage))
	must.Eq(t, gpu.SelfNeighbors{Tasks: 2, GuaranteeMilli: 500, MemoryMiB: 30, Milli: -1}, one().Neighbors)
	must.Nil(t, one().Use)
	usage.Tasks[0].Milli = 0
	must.NoError(t, env.state.WriteUsage(usage))
	must.Zero(t, one().Neighbors.Milli, must.Sprint("they are measured, and idle"))
	usage.Tasks = []gpu.TaskUsage{{LeaseID: "mine", UUID: gpuA, MemoryMiB: 7}}
	must.NoError(t, env.state.WriteUsage(usage))
	must.Nil(t, one().Use, must.Sprint("of its predecessor"))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Slices: 2}))
	must.True(t, one().Whole)

	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, "usage.json"), []byte("{"), 0o600))
	d.selfView.at = time.Time{}
	answer := selfOf{d, mine}.Answer(t.Context(), gpu.SelfRequest{})
	must.Nil(t, answer.Status)
	must.Eq(t, "(the task's status is not known: the node's state files cannot be read)", answer.Message)
	must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, "usage.json")))
	must.Nil(t, one().Use, must.Sprint("nothing was measured yet"))
}

// A task with a seat is told where it is, when its turn comes and what it has asked for.
func TestWhatATaskIsToldOfItsSeat(t *testing.T) {
	d, env := alone(t)
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}})
	seat := func() *gpu.SelfSeat { return selfOf{d, mine}.seat(env.state, gpuA) }
	must.Nil(t, seat())
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA}))
	since := time.Unix(1e9, 0).UTC()
	write := func(all ...gpu.Seat) { must.NoError(t, env.state.WriteSeats(gpu.Seats{UUID: gpuA, Seats: all})) }
	other := gpu.Seat{LeaseID: "other", State: gpu.SeatWaiting, Priority: 90}
	write(other, gpu.Seat{LeaseID: "mine", State: gpu.SeatSuspended, Since: since, Priority: 50, Idle: true, Fixed: true})
	must.Nil(t, seat())
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{MaxWaitMS: 60_000}}))
	must.Eq(t, &gpu.SelfSeat{State: gpu.SeatSuspended, Since: since, Priority: 50, Idle: true, Fixed: true, NextTurn: since.Add(time.Minute), Waiting: 1, Ahead: 1}, seat())
	write(gpu.Seat{LeaseID: "mine", State: gpu.SeatResident, Since: since, Yield: true}, other)
	must.Eq(t, &gpu.SelfSeat{State: gpu.SeatResident, Since: since, Asked: gpu.SelfYield, Waiting: 1}, seat())
	answer := selfOf{d, mine}.Answer(t.Context(), gpu.SelfRequest{Action: gpu.SelfWant})
	must.StrContains(t, answer.Message, "comes back to its GPU")
	must.Eq(t, gpu.SelfWant, answer.Status.GPUs[0].Seat.Asked)
	write(other)
	must.Nil(t, seat())
	mine.record.Lease.Holdings = append(mine.record.Lease.Holdings, gpu.Holding{UUID: gpuB})
	answer = selfOf{d, mine}.Answer(t.Context(), gpu.SelfRequest{Action: gpu.SelfYield})
	must.StrContains(t, answer.Error, `action: "yield" is not valid on GPU `+gpuB)
}

// A share that cannot be changed stays as it is, and the task is told why.
func TestSharesThatCannotBeChanged(t *testing.T) {
	d, env := alone(t)
	holding := gpu.Holding{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}, Share: gpu.Share{MemoryMiB: 1024}}
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{holding, {UUID: gpuB}}})
	resize := func() error { _, err := selfOf{d, mine}.resize(t.Context(), gpu.SelfResize{}); return err }
	must.ErrorContains(t, resize(), "the task holds 2 GPUs")
	mine.record.Lease.Holdings = mine.record.Lease.Holdings[:1]
	mine.own.holdings.Store(&mine.record.Lease.Holdings)
	must.ErrorContains(t, resize(), "nothing is known of GPU "+gpuA+" now")
	mine.own.mu.Lock()
	must.ErrorContains(t, resize(), "another change of the task's share is under way")
	mine.own.mu.Unlock()
	mine.own.last = time.Now()
	must.ErrorContains(t, resize(), "it can be changed once every 5s")

	// The watchdog would kill a task for what it uses already.
	self := selfOf{d, mine}
	must.NoError(t, env.state.WriteLease(mine.record.Lease))
	must.NoError(t, env.state.WriteUsage(gpu.Usage{MeasuredAt: time.Now(), Tasks: []gpu.TaskUsage{{LeaseID: "mine", UUID: gpuA, MemoryMiB: 900}}}))
	less := func(mib int64) gpu.Holding { h := holding; h.Share.MemoryMiB = mib; return h }
	must.NoError(t, self.holdsLess(less(900)))
	must.ErrorContains(t, self.holdsLess(less(899)), "the task uses 900M now")
	must.NoError(t, self.holdsLess(less(1024)))
	mine.record.Lease.Holdings = append(mine.record.Lease.Holdings, gpu.Holding{UUID: gpuB})
	mine.own.holdings.Store(&mine.record.Lease.Holdings)
	must.ErrorContains(t, self.holdsLess(less(1024)), "it is not known what the task uses now")

	// A lease of an earlier container, or one that ended, says nothing of this one's share.
	own := gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{holding}}
	for name, row := range map[string]struct {
		change func(*gpu.Lease)
		want   int64
	}{
		"as it is now":         {func(*gpu.Lease) {}, 2},
		"of another container": {func(l *gpu.Lease) { l.Container = "other" }, 1024},
		"ended":                {func(l *gpu.Lease) { l.Phase = gpu.PhaseEnded }, 1024},
		"of more GPUs":         {func(l *gpu.Lease) { l.Holdings = append(l.Holdings, gpu.Holding{UUID: gpuB}) }, 1024},
	} {
		now := own
		now.Holdings = []gpu.Holding{less(2)}
		row.change(&now)
		must.NoError(t, env.state.WriteLease(now))
		must.Eq(t, row.want, d.currentLease(own).Holdings[0].MemoryMiB, must.Sprint(name))
	}
}

// Which daemon's client a task is, and which partition is its own.
func TestDaemonsOfATask(t *testing.T) {
	d, env := alone(t)
	pipe := t.TempDir()
	holding := gpu.Holding{UUID: gpuA, MPSGeneration: 3, Partition: &gpu.Partition{ID: "p1", Chunks: 1}}
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuB}, holding}})
	found := func() bool { _, _, found := d.mpsOf(mine); return found }
	plan := &startPlan{env: env, record: record.Record{Lease: mine.record.Lease}}
	must.ErrorContains(t, d.takePartition(t.Context(), plan), "the task gets no multiprocessors of its own: ")
	for name, row := range map[string]struct {
		mps   *gpu.MPSState
		found bool
		says  string
	}{
		"none":          {nil, false, "its MPS daemon was replaced"},
		"another":       {&gpu.MPSState{Generation: 4, Control: "/bin/false", PipeDir: pipe}, false, "its MPS daemon was replaced"},
		"not reachable": {&gpu.MPSState{Generation: 3, PipeDir: pipe}, false, "the task gets no multiprocessors"},
		"its own":       {&gpu.MPSState{Generation: 3, Control: "/bin/false", PipeDir: pipe}, true, "the task gets no multiprocessors"},
	} {
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: row.mps}))
		must.Eq(t, row.found, found(), must.Sprint(name))
		must.ErrorContains(t, d.takePartition(t.Context(), plan), row.says, must.Sprint(name))
		if !row.found && row.mps != nil && row.mps.Generation == 4 {
			must.NoError(t, d.removePartition(t.Context(), env, holding, "box"), must.Sprint("it ended with its daemon"))
		}
	}
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: "/bin/false", PipeDir: pipe}}))
	must.Error(t, d.removePartition(t.Context(), env, holding, "box"))
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "next", Container: "next", Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{holding}}))
	must.NoError(t, d.removePartition(t.Context(), env, holding, "box"), must.Sprint("it is another's by now"))
	must.Error(t, d.removePartition(t.Context(), env, holding, "next"), must.Sprint("its own"))
	leases, err := env.state.Leases()
	must.NoError(t, err)
	for name, of := range map[string]gpu.Holding{"another GPU": {UUID: gpuB, MPSGeneration: 3}, "another daemon": {UUID: gpuA, MPSGeneration: 4}} {
		must.False(t, heldPartition(of, "p1", "", leases), must.Sprint(name))
	}
	must.False(t, heldPartition(holding, "p2", "", leases))
	must.True(t, heldPartition(holding, "p1", "", leases))
	must.NoError(t, d.takePartition(t.Context(), &startPlan{env: env}))
	d.returnPartition(t.Context(), env, gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuA, Partition: &gpu.Partition{}}}})
	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, "leases", "cut.json"), []byte("{"), 0o600))
	must.Error(t, d.removePartition(t.Context(), env, holding, "next"))
}

// A GPU is closed to a task that holds all of it, and to none else, while its compute mode
// lets in its MPS server only.
func TestClosedGPUs(t *testing.T) {
	_, env := alone(t)
	whole := gpu.Holding{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0, 1}}
	closed := func(h gpu.Holding) bool {
		uuid, found := closedGPU([]gpu.Holding{{UUID: gpuB}, h}, env.state)
		must.Eq(t, found, uuid == gpuA)
		return found
	}
	must.False(t, closed(whole))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Exclusive: true, Slices: 2}))
	must.True(t, closed(whole))
	must.False(t, closed(gpu.Holding{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}}))
	must.False(t, closed(gpu.Holding{UUID: gpuA, Mode: gpu.ModeShared, Slices: []int{0, 1}}))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Slices: 2}))
	must.False(t, closed(whole))
}

// How a task ended is told as its container says, but for one that was killed for a reason,
// and once.
func TestHowATaskEnded(t *testing.T) {
	d, env := alone(t)
	at := time.Now().UTC()
	for name, row := range map[string]struct {
		exit    runtime.Exit
		verdict error
		want    drivers.ExitResult
	}{
		"well":            {runtime.Exit{}, nil, drivers.ExitResult{}},
		"with a code":     {runtime.Exit{Code: 128}, nil, drivers.ExitResult{ExitCode: 128}},
		"by a signal":     {runtime.Exit{Code: 137}, nil, drivers.ExitResult{ExitCode: 137, Signal: 9}},
		"by the last one": {runtime.Exit{Code: 192}, nil, drivers.ExitResult{ExitCode: 192, Signal: 64}},
		"by none":         {runtime.Exit{Code: 193}, nil, drivers.ExitResult{ExitCode: 193}},
		"of memory":       {runtime.Exit{Code: 137, OOMKilled: true}, nil, drivers.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true, Err: errOOM}},
		"of GPU memory":   {runtime.Exit{Code: 137}, violation{code: codeMemory}, drivers.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true, Err: violation{code: codeMemory}}},
		"for a reason":    {runtime.Exit{Code: 137}, errLost, drivers.ExitResult{ExitCode: 137, Signal: 9, Err: errLost}},
	} {
		one := known(d, env, gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuA}}})
		must.Eq(t, drivers.TaskStateRunning, one.status().State)
		must.False(t, one.exited())
		if row.verdict != nil {
			must.True(t, one.markKilled(row.verdict))
			must.False(t, one.markKilled(errors.New("another")))
		}
		row.exit.At = at
		one.finish(row.exit, nil)
		one.finish(runtime.Exit{Code: 7}, errors.New("another"))
		status := one.status()
		must.Eq(t, drivers.TaskStateExited, status.State)
		must.Eq(t, gpuA, status.DriverAttributes["gpu.0"])
		must.Eq(t, at, status.CompletedAt)
		must.True(t, one.exited())
		must.Eq(t, row.want.ExitCode, status.ExitResult.ExitCode, must.Sprint(name))
		must.Eq(t, row.want.Signal, status.ExitResult.Signal, must.Sprint(name))
		must.Eq(t, row.want.OOMKilled, status.ExitResult.OOMKilled, must.Sprint(name))
		must.Eq(t, row.want.Err == nil, status.ExitResult.Err == nil, must.Sprint(name))
		if row.want.Err != nil {
			must.EqError(t, status.ExitResult.Err, row.want.Err.Error(), must.Sprint(name))
		}
	}
}

// A configuration that cannot be decoded stops a start, and leaves a task that runs to be
// started again after a fault.
func TestTaskConfigurationsThatCannotBeDecoded(t *testing.T) {
	cfg := &drivers.TaskConfig{}
	_, err := config.Task(cfg, taskconfig.Policy{})
	must.ErrorContains(t, err, "decode task config: ")
	must.Eq(t, taskconfig.OnFaultRestart, config.OnFault(cfg))
}

// A start that failed while its GPU's daemon was replaced is tried again.
func TestSharesThatAreLost(t *testing.T) {
	_, env := alone(t)
	cfg := &drivers.TaskConfig{Env: map[string]string{}}
	p := &startPlan{env: env, cfg: cfg}
	must.NoError(t, shareLost(p), must.Sprint("a task without GPUs"))
	reserveDevice(gpu.ReservedDevice{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}, Of: 16, MemoryMiB: 1024, Milli: 62, BurstMilli: 900})(cfg)
	p.share.Holdings = []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}
	daemon := func(generation int64) {
		t.Helper()
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Mode: gpu.ModeSlice, Sharing: gpu.SharingMPS, Slices: 16, MemoryMiB: 16 << 10, CDIDevice: "nvidia.com/gpu=all", MPS: &gpu.MPSState{Ready: true, Generation: generation, PipeDir: "/nowhere"}}))
	}
	daemon(3)
	must.NoError(t, shareLost(p))
	daemon(4)
	must.ErrorContains(t, shareLost(p), "its MPS daemon was replaced while the task started")
	must.NoError(t, env.state.RemoveGPU(gpuA))
	must.Error(t, shareLost(p))
}

// A watchdog without files to read kills no task, and one that is not configured looks at
// none.
func TestWatchdogsThatCannotSee(t *testing.T) {
	idle := unconfigured(t)
	(&watchdog{driver: idle}).round(time.Now())
	d, env := alone(t)
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 10}}}})
	mine.record.StartedAt = time.Now().Add(-time.Minute)
	w := &watchdog{driver: d}
	now := time.Now()
	usage := gpu.Usage{Tasks: []gpu.TaskUsage{{LeaseID: "mine", UUID: gpuA, MemoryMiB: 100_000}}}
	look := func(measured time.Time) {
		t.Helper()
		usage.MeasuredAt = measured
		must.NoError(t, env.state.WriteUsage(usage))
		w.look([]*task{mine}, env.state, config.WatchdogWarn, now)
	}
	for range actAfter + 1 { // the same measurement does not count twice
		look(now)
	}
	must.MapLen(t, 1, w.strikes)
	for range actAfter + 1 {
		look(now.Add(-usageMaxAge - time.Second))
		look(mine.record.StartedAt.Add(-time.Second))
	}
	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, "usage.json"), []byte("{"), 0o600))
	w.look([]*task{mine}, env.state, config.WatchdogWarn, now)
	must.MapLen(t, 1, w.strikes)
	for _, strikes := range w.strikes {
		must.Eq(t, 1, strikes)
	}
	for i := range actAfter - 1 {
		look(now.Add(time.Duration(i+1) * time.Millisecond))
	}
	about := topic{Container: mine.container.ID, UUID: gpuA, Code: codeMemory}
	must.Eq(t, map[topic]int{about: actAfter}, w.strikes)
	must.False(t, w.said.first(about), must.Sprint("the task was told"))
	must.False(t, mine.exited())
}
