// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A start that waits for its seat says so, once, lets others start meanwhile, and goes on
// when it has the seat.
func TestStartsThatWaitForASeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, env := alone(t)
		defer synctest.Wait()
		defer d.Shutdown()
		tells := listener(t, d)
		lease := gpu.Lease{ID: "mine", Phase: gpu.PhaseStarting, StartedAt: time.Unix(1e9, 0).UTC(), Holdings: []gpu.Holding{{UUID: gpuB}, {UUID: gpuA, SeatMiB: 1}}}
		s := &start{driver: d, cfg: &drivers.TaskConfig{ID: "task", JobID: "job"}, plan: &startPlan{env: env, record: record.Record{Lease: lease}}}
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA}))
		must.ErrorContains(t, s.awaitSeat(t.Context()), "no longer says how its tasks step aside")
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{}}))
		_, done, err := d.starts.begin(t.Context(), s.cfg)
		must.NoError(t, err)
		defer done()
		d.starts.room.SetLimit(1)
		must.NoError(t, d.starts.enter(t.Context(), s.cfg))
		seated := make(chan error, 1)
		events := tells(func() {
			go func() { seated <- s.awaitSeat(t.Context()) }()
			time.Sleep(10 * seatPoll)
			_ = env.state.WriteSeats(gpu.Seats{UUID: gpuA, Seats: []gpu.Seat{{LeaseID: "other", State: gpu.SeatResident}, {LeaseID: "mine", StartedAt: lease.StartedAt, State: gpu.SeatWaiting}}})
			time.Sleep(10 * seatPoll)
		})
		must.Eq(t, []string{"task: GPU " + gpuA + ": waits for a seat: 1 task is on the GPU now"}, saidIn(events))
		must.Eq(t, map[string]string{"gpu": gpuA, "seat": string(gpu.SeatWaiting)}, events[0].Annotations)
		must.Zero(t, d.starts.room.Taken())
		must.True(t, d.seats.isReady("mine"))
		must.Zero(t, len(seated))
		must.NoError(t, env.state.WriteSeats(gpu.Seats{UUID: gpuA, Seats: []gpu.Seat{{LeaseID: "mine", StartedAt: lease.StartedAt, State: gpu.SeatResident}}}))
		must.NoError(t, <-seated)
	})
}

// The seats of each device that has some are kept, and of no other; those that an earlier
// process wrote down are taken up.
func TestDevicesWithSeatsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, env := alone(t)
		defer synctest.Wait()
		defer d.Shutdown()
		rules := &gpu.SeatRules{SwitchPercent: 10, HostMemoryMiB: 1 << 20}
		for uuid, s := range map[string]*gpu.SeatRules{"GPU-1": rules, "GPU-2": nil, "GPU-3": rules} {
			must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: uuid, Seats: s}))
		}
		go d.seatLoop()
		time.Sleep(10 * seatPeriod)
		must.Nil(t, d.seats.known("GPU-2"))
		for _, uuid := range []string{"GPU-1", "GPU-3"} {
			device := d.seats.known(uuid)
			must.NotNil(t, device)
			device.mu.Lock()
			must.NotNil(t, device.controller)
			device.mu.Unlock()
		}
	})
	d, env := alone(t)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10, HostMemoryMiB: 1 << 20}}))
	lease := gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseRunning, StartedAt: time.Unix(1e9, 0).UTC(), Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}}
	must.NoError(t, env.state.WriteLease(lease))
	must.NoError(t, env.state.WriteUsage(gpu.Usage{MeasuredAt: time.Now(), Devices: []gpu.DeviceUsage{{UUID: gpuA, CapacityMiB: 300, UsedMiB: 200}, {UUID: gpuB}}, Tasks: []gpu.TaskUsage{{LeaseID: "mine", UUID: gpuA, MemoryMiB: 5}}}))
	now, err := d.seatsNow(env.state, gpuA)
	must.NoError(t, err)
	must.Eq(t, 300, now.CapacityMiB)
	must.Len(t, 1, now.Tasks)
	must.Eq(t, 5, now.Tasks[0].MeasuredMiB)
	must.NoError(t, env.state.WriteSeats(gpu.Seats{UUID: gpuA, Seats: []gpu.Seat{{LeaseID: "mine", StartedAt: lease.StartedAt, State: gpu.SeatResident, Resumed: true}}}))
	device, _ := d.seats.device(gpuA)
	must.NoError(t, d.seatStep(env.state, gpuA, device))
	must.Len(t, 1, device.controller.Seats())
	must.True(t, device.controller.Seats()[0].Resumed)
}

// Limits of a control group's memory are the kernel's files there.
func TestLimitsOfMemory(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	d, env := alone(t)
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "mine", Container: "box", Cgroup: path}))
	host := &seatHost{driver: d, uuid: gpuA}
	limit := func() int64 {
		t.Helper()
		got, err := host.MemoryLimit("mine")
		must.NoError(t, err)
		return got
	}
	name, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	if cgroups.Unified() {
		name, swap = "memory.max", "memory.max"
		cgroupstest.Fill(t, dir, map[string]string{"memory.current": "1"})
	}
	must.Zero(t, limit(), must.Sprint("it has no such file"))
	cgroupstest.Fill(t, dir, map[string]string{swap: "5000", name: "2000"})
	must.Eq(t, 2000, limit())
	must.NoError(t, host.SetMemoryLimit("mine", 3000))
	must.Eq(t, 3000, limit())
	if !cgroups.Unified() {
		both, err := readBytes(filepath.Join(dir, swap))
		must.NoError(t, err)
		must.Eq(t, 6000, both)
	}
	for _, none := range []string{"max", fmt.Sprint(noMemoryLimit), "9223372036854771712"} {
		cgroupstest.Fill(t, dir, map[string]string{name: none})
		must.Zero(t, limit())
	}
	cgroupstest.Fill(t, dir, map[string]string{name: fmt.Sprint(noMemoryLimit - 1)})
	must.Eq(t, noMemoryLimit-1, limit())
	cgroupstest.Fill(t, dir, map[string]string{name: "many"})
	if cgroups.Unified() {
		_, err := host.MemoryLimit("mine")
		must.ErrorContains(t, err, "invalid syntax")
	} else {
		must.Zero(t, limit(), must.Sprint("of another hierarchy"))
	}
	files := limitFiles(t, "2000", fmt.Sprint(noMemoryLimit))
	must.NoError(t, setMemoryLimits(files, "", 3000))
	must.Eq(t, []string{"3000", fmt.Sprint(noMemoryLimit)}, contents(t, files))
	must.Eq(t, 30, reclaimable("active_file 10\nanon 7\ninactive_file 20\n"))
}

// A program that does not answer is killed; what it is asked names its lock.
func TestProgramsOfTheDevicePlugin(t *testing.T) {
	d, env := alone(t)
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	program := func(script string) {
		t.Helper()
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10, Suspender: gpu.Suspender{Command: []string{"/bin/sh", "-c", script}}}}))
	}
	program("cat > " + asked + "; echo '{}'")
	host := &seatHost{driver: d, uuid: gpuA}
	_, err := host.Checkpoint(t.Context(), gpu.CheckpointRequest{Action: gpu.CheckpointLook, PIDs: []int{7}})
	must.NoError(t, err)
	text, err := os.ReadFile(asked)
	must.NoError(t, err)
	must.StrContains(t, string(text), `"lock":"`+env.state.SeatLock(gpuA)+`"`)
	must.StrContains(t, string(text), `"pids":[7]`)

	// It is killed once it runs, which its pipe says.
	pipe := filepath.Join(dir, "pipe")
	must.NoError(t, syscall.Mkfifo(pipe, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := make(chan error, 1)
	go func() {
		_, err := runSuspender(ctx, gpu.Suspender{Command: []string{"/bin/sh", "-c", "echo $$ > " + pipe + "; exec sleep 1000"}}, nil)
		hung <- err
	}()
	text, err = os.ReadFile(pipe)
	must.NoError(t, err)
	cancel()
	must.ErrorIs(t, <-hung, context.Canceled)
	pid := 0
	_, err = fmt.Sscan(string(text), &pid)
	must.NoError(t, err)
	eventually(t, "the program has ended", func() bool { return processGone(pid) })
}

// A task that was suspended before leaves its GPU before it is killed, and no other does.
func TestTasksLeaveTheirGPU(t *testing.T) {
	d, env := alone(t)
	asked := filepath.Join(t.TempDir(), "asked")
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10, Suspender: gpu.Suspender{Command: []string{"/bin/sh", "-c", "cat > " + asked + "; echo '{}'"}}}}))
	host := &seatHost{driver: d, uuid: gpuA}
	path, group := cgroupstest.Fake(t)
	cgroupstest.Fill(t, group, map[string]string{"cgroup.procs": "41\n42\n"})
	for name, row := range map[string]struct {
		seat  gpu.Seat
		leave bool
	}{
		"was suspended":      {gpu.Seat{LeaseID: "known", State: gpu.SeatResident, Resumed: true}, true},
		"never was":          {gpu.Seat{LeaseID: "known", State: gpu.SeatResident}, false},
		"is on the host":     {gpu.Seat{LeaseID: "known", State: gpu.SeatSuspended, Resumed: true}, false},
		"of another is told": {gpu.Seat{LeaseID: "other", State: gpu.SeatResident, Resumed: true}, false},
	} {
		_ = os.Remove(asked)
		one := named(d, env, "known", gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuB}, {UUID: gpuA, SeatMiB: 1}}})
		one.record.Lease.Container, one.record.Lease.Cgroup = "box", path
		must.NoError(t, env.state.WriteLease(one.record.Lease))
		device, _ := d.seats.device(gpuA)
		device.controller = nil
		d.leaveGPU(one) // nothing is known of its seat yet
		device.controller = &seats.Controller{UUID: gpuA, Host: host, Now: time.Now, Patience: seats.Patience}
		device.controller.Restore(gpu.Seats{UUID: gpuA, Seats: []gpu.Seat{row.seat, {LeaseID: "third", State: gpu.SeatWaiting}}})
		device.mu.Lock()
		d.leaveGPU(one) // while tasks are moved, it does not wait
		device.mu.Unlock()
		_, err := os.Stat(asked)
		must.ErrorIs(t, err, os.ErrNotExist, must.Sprint(name))
		d.leaveGPU(one)
		must.True(t, device.mu.TryLock())
		device.mu.Unlock()
		text, err := os.ReadFile(asked)
		must.Eq(t, row.leave, err == nil, must.Sprint(name))
		if row.leave {
			must.StrContains(t, string(text), `"action":"suspend"`)
			must.StrContains(t, string(text), `"pids":[41,42]`)
		}
	}
}

// A task that cannot go on leaves it too before it is killed, although its seat is lost then.
func TestALostTaskLeavesItsGPU(t *testing.T) {
	for _, resumed := range []bool{true, false} {
		d, env := alone(t)
		asked := filepath.Join(t.TempDir(), "asked")
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10, Suspender: gpu.Suspender{Command: []string{"/bin/sh", "-c",
			"cat >> " + asked + `; echo '{"unread":[42],"failure":"cuda"}'`}}}}))
		path, group := cgroupstest.Fake(t)
		cgroupstest.Fill(t, group, map[string]string{"cgroup.procs": "41\n42\n"})
		one := named(d, env, "known", gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}})
		one.record.Lease.Container, one.record.Lease.Cgroup = "box", path
		must.NoError(t, env.state.WriteLease(one.record.Lease))
		device, _ := d.seats.device(gpuA)
		host := &seatHost{driver: d, uuid: gpuA}
		device.controller = &seats.Controller{UUID: gpuA, Host: host, Now: time.Now, Patience: seats.Patience}
		device.controller.Restore(gpu.Seats{UUID: gpuA, Seats: []gpu.Seat{{LeaseID: "known", State: gpu.SeatLost, Resumed: resumed}}})
		device.mu.Lock()
		host.Lost("known", "its state is not known")
		text, err := os.ReadFile(asked)
		device.mu.Unlock()
		must.Eq(t, resumed, err == nil)
		if resumed { // once with all processes, and once with those that tell where they are
			must.StrContains(t, string(text), `"pids":[41,42]`)
			must.StrContains(t, string(text), `"pids":[41],`)
		}
	}
}
