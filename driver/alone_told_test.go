// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// damage makes a state file one that cannot be read.
func damage(t *testing.T, env environment, name string) {
	t.Helper()
	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, name), []byte("{"), 0o600))
}

// What fails in the background has no caller to return it to: the operator is told, once
// where the same would be said over and over, and again when it comes back.
func TestWhatFailsInTheBackgroundIsTold(t *testing.T) {
	background := func(name string, during func(t *testing.T, d *Driver, env environment, said func() string)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, env := alone(t)
				said := hear(d)
				defer synctest.Wait()
				defer d.Shutdown()
				during(t, d, env, said)
			})
		})
	}
	background("reaper", func(t *testing.T, d *Driver, env environment, said func() string) {
		env.settings.GCPeriod = time.Hour
		d.use(env)
		damage(t, env, "leases/cut.json")
		go d.reapLoop()
		time.Sleep(time.Minute)
		must.Eq(t, "", said())
		time.Sleep(time.Hour)
		must.Eq(t, 1, strings.Count(said(), "tidying up was not complete: "))
		must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, "leases/cut.json")))
		time.Sleep(time.Hour)
		must.Eq(t, 1, strings.Count(said(), "tidying up was not complete: "))
	})
	background("seats", func(t *testing.T, d *Driver, env environment, said func() string) {
		const says = "the seats of a GPU stay as they are: gpu=" + gpuA
		device, _ := d.seats.device(gpuA)
		go d.keepSeats(gpuA, device)
		time.Sleep(10 * seatPeriod)
		must.Eq(t, 1, strings.Count(said(), says))
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10}}))
		time.Sleep(10 * seatPeriod)
		must.Eq(t, 1, strings.Count(said(), says))
		must.NoError(t, env.state.RemoveGPU(gpuA))
		time.Sleep(10 * seatPeriod)
		must.Eq(t, 2, strings.Count(said(), says))
	})
	background("counts", func(t *testing.T, d *Driver, env environment, said func() string) {
		const says = "what the driver counted cannot be written"
		damage(t, env, "driver.json")
		go d.countsLoop()
		time.Sleep(10 * countsPeriod)
		must.Eq(t, 1, strings.Count(said(), says))
		must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, "driver.json")))
		time.Sleep(10 * countsPeriod)
		damage(t, env, "driver.json") // it is not read again
		time.Sleep(10 * countsPeriod)
		must.Eq(t, 1, strings.Count(said(), says))
	})
	background("notices", func(t *testing.T, d *Driver, env environment, said func() string) {
		one := known(d, env, gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuA}}})
		damage(t, env, "notices.json")
		w := &watchdog{driver: d}
		w.round(time.Now())
		must.Eq(t, 1, strings.Count(said(), "watchdog cannot read what tasks were told"))
		must.NoError(t, os.RemoveAll(filepath.Join(env.settings.StateDir, "notices.json")))
		must.NoError(t, os.Mkdir(filepath.Join(env.settings.StateDir, "notices.json"), 0o700))
		must.True(t, w.said.first(topic{Container: one.container.ID, UUID: gpuA, Code: codeMemory}))
		w.round(time.Now())
		must.Eq(t, 1, strings.Count(said(), "watchdog cannot note what tasks were told"))
	})
	background("partition", func(t *testing.T, d *Driver, env environment, said func() string) {
		damage(t, env, "leases/cut.json")
		begin := time.Now()
		d.returnPartition(t.Context(), env, gpu.Lease{Container: "box", Holdings: []gpu.Holding{{UUID: gpuA, Partition: &gpu.Partition{ID: "p"}}}})
		must.Eq(t, partitionWait, time.Since(begin))
		must.StrContains(t, said(), "a partition of multiprocessors stays until the next task of the GPU starts: gpu="+gpuA+" container=box")
	})
	background("open", func(t *testing.T, d *Driver, env environment, _ func() string) {
		must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Exclusive: true, Slices: 1}))
		s := &start{driver: d, plan: &startPlan{env: env}}
		s.plan.share.Holdings = []gpu.Holding{{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}}}
		begin := time.Now()
		must.ErrorContains(t, s.awaitOpen(t.Context()), "its compute mode lets in its MPS server only")
		must.Less(t, openTimeout+2*openPoll, time.Since(begin))
		must.GreaterEq(t, openTimeout, time.Since(begin))
	})
}

// Unfinished work on a task is told to the operator with the name of the task.
func TestWhatIsLeftUndoneOfATaskIsTold(t *testing.T) {
	d, env := alone(t)
	said := hear(d)
	holding := gpu.Holding{UUID: gpuA, MPSGeneration: 3, SeatMiB: 1}
	one := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{holding}})
	one.record.Lease.Holdings = []gpu.Holding{holding}

	spoil(t, env, "self")
	d.serveSelf(t.Context(), one)
	must.StrContains(t, said(), "the task cannot ask about its GPU: its socket could not be made: ")
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Ready: true, PipeDir: "/proc/self/exe"}}))
	spoil(t, env, "pipes")
	d.followDaemons(env, []*task{one})
	must.StrContains(t, said(), "the task does not see its GPU's new MPS daemon: ")
	(&seatHost{driver: d, uuid: gpuA}).leave(one)
	must.StrContains(t, said(), "a task that was suspended before is killed on its GPU: ")
	env.settings.ContainerdRuntime = runcRuntime
	d.describeRunc(t.Context(), env, nil)
	must.StrContains(t, said(), "the version of runc is not known: ")
	spoil(t, env, "leases")
	d.ended(t.Context(), one, runtime.Exit{}, nil)
	must.StrContains(t, said(), "lease of an ended task stays live: ")
	must.True(t, one.exited())
	must.StrContains(t, said(), "exit code is not recorded with the container: ")
	must.Eq(t, 0, one.status().ExitResult.ExitCode)
	d.Shutdown()
	d.emit(one.cfg, "a message", nil)
	eventually(t, "the end of the events is noticed", func() bool {
		d.emit(one.cfg, "a message", nil)
		return strings.Contains(said(), "task event was not delivered: task_id=known")
	})
}

// A task that lost its place on the GPU is told why, and killed with that for its result;
// one that cannot be killed is tried again.
func TestATaskThatLostItsPlace(t *testing.T) {
	d, _, fake, cfg := besideFake(t)
	said := hear(d)
	events, err := d.TaskEvents(t.Context())
	must.NoError(t, err)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err := d.tasks.get(cfg.ID)
	must.NoError(t, err)
	h := &seatHost{driver: d, uuid: gpuA}
	h.Lost("another", "nothing")
	fake.fail(codes.Internal, "Tasks/Kill")
	h.Lost(boxLease, "it is gone")
	event := <-events
	must.StrContains(t, event.Message, "GPU "+gpuA+": it is gone; the task is killed")
	must.Eq(t, string(gpu.SeatLost), event.Annotations["seat"])
	eventually(t, "the kill is given up", func() bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		return one.verdict == nil
	})
	must.StrContains(t, said(), "watchdog could not kill the task, and will try again: ")
	must.False(t, one.exited())
	fake.fail(codes.OK)
	h.Lost(boxLease, "it is gone again")
	result := resultOf(t, d, cfg.ID)
	must.Eq(t, 137, result.ExitCode)
	must.ErrorContains(t, result.Err, "lost its place on the GPU: it is gone again")
}

// A driver that is configured anew gives up its connection, and tells what it could not
// tidy up of the time before.
func TestADriverThatIsConfiguredAnew(t *testing.T) {
	d, env, _, _ := besideFake(t)
	said := hear(d)
	_, err := env.runtime.Version(t.Context())
	must.ErrorContains(t, err, "unknown service")
	var block config.Config
	parse(t, config.Schema, ``, &block)
	block.StateDir = filepath.Join(t.TempDir(), "state")
	busy := filepath.Join(block.StateDir, "exec", "busy")
	must.NoError(t, os.MkdirAll(busy, 0o700))
	if os.Getuid() == 0 {
		must.NoError(t, unix.Mount("t", busy, "tmpfs", 0, ""))
		defer func() { must.NoError(t, unix.Unmount(busy, unix.MNT_DETACH)) }()
	}
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, block))
	must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data}))
	eventually(t, "the background has written what it writes at once", func() bool { return fileExists(filepath.Join(block.StateDir, "driver.json")) })
	d.cancel()
	must.Eq(t, os.Getuid() == 0, strings.Contains(said(), "pipes of old exec sessions stay: "))
	_, err = env.runtime.Version(t.Context())
	must.ErrorContains(t, err, "the client connection is closing")
}

// What is asked of a task that has ended, or of a driver that is not configured any more,
// is refused.
func TestWhatIsAskedTooLate(t *testing.T) {
	d, env := alone(t)
	one := known(d, env, gpu.Lease{})
	d.settings.StatsEvery = time.Hour
	over, cancel := context.WithCancel(t.Context())
	cancel()
	usages, err := d.TaskStats(over, "known", 0)
	must.NoError(t, err)
	must.Nil(t, <-usages)
	one.finish(runtime.Exit{}, nil)
	_, err = d.ExecTaskStreaming(t.Context(), "known", &drivers.ExecOptions{})
	must.ErrorContains(t, err, `task "known" has ended`)

	idle := unconfigured(t)
	idle.tasks.put(one)
	_, err = idle.TaskStats(over, "known", time.Hour)
	must.ErrorIs(t, err, errDisabled)
	_, err = selfOf{idle, one}.resize(over, gpu.SelfResize{})
	must.ErrorContains(t, err, "the task holds 0 GPUs")
	one.record.Lease.Holdings = []gpu.Holding{{UUID: gpuA}}
	_, err = selfOf{idle, one}.resize(over, gpu.SelfResize{})
	must.ErrorIs(t, err, errDisabled)
	_, err = idle.plan(over, &drivers.TaskConfig{})
	must.ErrorIs(t, err, errDisabled)
}
