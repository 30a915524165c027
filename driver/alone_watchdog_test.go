// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// listener returns what tells the events of a driver that come while something is done,
// without those that come in between.
func listener(t *testing.T, d *Driver) func(do func()) []*drivers.TaskEvent {
	t.Helper()
	events, err := d.TaskEvents(t.Context())
	must.NoError(t, err)
	return func(do func()) (told []*drivers.TaskEvent) {
		go func() { // who hears events holds up who tells them
			do()
			d.emit(&drivers.TaskConfig{}, "the last", nil)
		}()
		for event := anyEvent(t, events); event.Message != "the last"; event = anyEvent(t, events) {
			told = append(told, event)
		}
		return told
	}
}

// saidIn are the messages of events, each after its task's name, in the order of the alphabet.
func saidIn(events []*drivers.TaskEvent) []string {
	all := []string{}
	for _, event := range events {
		all = append(all, event.TaskID+": "+event.Message)
	}
	slices.Sort(all)
	return all
}

// What a task uses beyond its share of each GPU that it holds.
func TestUseBeyondAShare(t *testing.T) {
	for share, want := range map[int64]int64{1: 64, 3200: 64, 3249: 64, 3250: 65, 10_000: 200, 40_000: 800} {
		must.Eq(t, want, tolerance(share))
	}
	held := func(uuid string, mib, limit int64) gpu.Holding {
		return gpu.Holding{UUID: uuid, Share: gpu.Share{MemoryMiB: mib, MemoryLimitMiB: limit}}
	}
	use := func(uuid string, mib int64, processes int, beside ...int) gpu.TaskUsage {
		return gpu.TaskUsage{UUID: uuid, MemoryMiB: mib, Processes: processes, BesideMPS: beside}
	}
	above := func(uuid, text string) violation { return violation{uuid, codeMemory, text} }
	for name, row := range map[string]struct {
		holdings []gpu.Holding
		usage    []gpu.TaskUsage
		want     []violation
	}{
		"nothing":               {},
		"its share":             {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 1024, 1)}, nil},
		"what is tolerated":     {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 1088, 1)}, nil},
		"a little more":         {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 1089, 1)}, []violation{above(gpuA, "1 processes use 1089M of memory of GPU "+gpuA+" together, the task's share is 1G")}},
		"a share of one":        {[]gpu.Holding{held(gpuA, 1, 0)}, []gpu.TaskUsage{use(gpuA, 66, 1)}, []violation{above(gpuA, "1 processes use 66M of memory of GPU "+gpuA+" together, the task's share is 1M")}},
		"a whole GPU":           {[]gpu.Holding{{UUID: gpuA}}, []gpu.TaskUsage{use(gpuA, 80_000, 1)}, nil},
		"its limit":             {[]gpu.Holding{held(gpuA, 1024, 4096)}, []gpu.TaskUsage{use(gpuA, 4000, 1)}, nil},
		"of another GPU":        {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuB, 80_000, 1, 7)}, nil},
		"two measured together": {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 1000, 2), use(gpuB, 5000, 7), use(gpuA, 1048, 3)}, []violation{above(gpuA, "5 processes use 2G of memory of GPU "+gpuA+" together, the task's share is 1G")}},
		"of each":               {[]gpu.Holding{held(gpuA, 1024, 0), held(gpuB, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 2048, 1), use(gpuB, 2048, 1)}, []violation{above(gpuA, "1 processes use 2G of memory of GPU "+gpuA+" together, the task's share is 1G"), above(gpuB, "1 processes use 2G of memory of GPU "+gpuB+" together, the task's share is 1G")}},
		"without its daemon":    {[]gpu.Holding{held(gpuA, 1024, 0)}, []gpu.TaskUsage{use(gpuA, 1, 2, 7, 8)}, []violation{{gpuA, codeBesideMPS, "processes [7 8] use GPU " + gpuA + " without its MPS daemon, where no limit holds them"}}},
	} {
		must.Eq(t, fmt.Sprintf("%#v", row.want), fmt.Sprintf("%#v", violations(gpu.Lease{Holdings: row.holdings}, row.usage)), must.Sprint(name))
	}
}

// Tasks are told of faults of their GPUs, each of every one, once, and of their end.
func TestFaultsAreToldOnce(t *testing.T) {
	d, env := alone(t)
	tells := listener(t, d)
	w := &watchdog{driver: d}
	on := []gpu.Holding{{UUID: gpuB}, {UUID: gpuA, MPSGeneration: 3}}
	began := time.Now()
	start := func(name string, holdings []gpu.Holding) *task {
		one := named(d, env, name, gpu.Lease{Phase: gpu.PhaseRunning, Holdings: holdings})
		one.record.StartedAt = began
		must.NoError(t, one.cfg.EncodeConcreteDriverConfig(taskconfig.Config{GPU: taskconfig.GPUConfig{OnFault: taskconfig.OnFaultEvent}}))
		return one
	}
	tasks := []*task{start("a", on), start("b", on), start("c", []gpu.Holding{{UUID: gpuB}})}
	start("ended", on).finish(runtime.Exit{}, nil)
	start("without", nil)
	must.Len(t, 3, w.gpuTasks())
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuB}))
	round := func(s gpu.GPUState, want ...string) {
		t.Helper()
		s.UUID = gpuA
		must.NoError(t, env.state.WriteGPU(s))
		must.Eq(t, append([]string{}, want...), saidIn(tells(func() { w.reportFaults(tasks, env.state) })))
		must.Eq(t, []string{}, saidIn(tells(func() { w.reportFaults(tasks, env.state) })), must.Sprint("it was told again"))
	}
	both := func(text string) []string {
		return []string{"a: GPU " + gpuA + ": " + text, "b: GPU " + gpuA + ": " + text}
	}
	mps := func(generation int64, fault *gpu.Fault) *gpu.MPSState {
		return &gpu.MPSState{Generation: generation, Fault: fault}
	}
	hot, ill := gpu.Fault{Code: "hot", Message: "it is hot", Action: "cool it"}, gpu.Fault{Code: "ill", Message: "it is ill", Action: "heal it", Fatal: true}
	must.Eq(t, []string{}, saidIn(tells(func() { w.reportFaults(tasks, env.state) })), must.Sprint("nothing is known of the GPU"))
	round(gpu.GPUState{MPS: mps(3, nil)})
	round(gpu.GPUState{MPS: mps(3, nil), Faults: []gpu.Fault{hot}}, both("it is hot; cool it")...)
	round(gpu.GPUState{MPS: mps(3, nil), Faults: []gpu.Fault{hot, ill}}, both("it is ill; heal it")...)
	round(gpu.GPUState{MPS: mps(3, nil), Faults: []gpu.Fault{ill}}, both("hot is over")...)
	round(gpu.GPUState{MPS: mps(3, nil), Faults: []gpu.Fault{hot}}, slices.Sorted(slices.Values(append(both("it is hot; cool it"), both("ill is over")...)))...)
	round(gpu.GPUState{MPS: mps(3, nil)}, both("hot is over")...)
	round(gpu.GPUState{MPS: mps(3, &gpu.Fault{Since: began})}, both("a program had a fatal GPU error, which ended the GPU work of all programs on its MPS server; CUDA calls of this task fail until it is restarted, and the GPU takes no new work until all its tasks have been")...)
	round(gpu.GPUState{MPS: mps(3, nil)}, both("its MPS server takes programs again")...)
	round(gpu.GPUState{MPS: mps(4, nil)}, both("its MPS daemon ended and another one was started; what this task had on the GPU is lost, and its CUDA calls fail until it is restarted")...)
	events := tells(func() { w.reportFaultsOf(tasks[2], gpu.GPUState{UUID: gpuB, Faults: []gpu.Fault{hot, ill}}) })
	must.Len(t, 2, events)
	must.Eq(t, map[string]string{"gpu": gpuB, "fault": "hot"}, events[0].Annotations)
	must.Eq(t, map[string]string{"gpu": gpuB, "fault": "ill"}, events[1].Annotations)
}

// Tasks are told when they are not measured any more, each once, and when that is over.
func TestTasksThatAreNotMeasured(t *testing.T) {
	d, env := alone(t)
	tells := listener(t, d)
	w := &watchdog{driver: d}
	now := time.Unix(1e9, 0).UTC()
	var tasks []*task
	for name, ago := range map[string]time.Duration{"old": time.Hour, "older": 2 * time.Hour, "new": time.Second} {
		one := named(d, env, name, gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA}}})
		one.record.StartedAt = now.Add(-ago)
		tasks = append(tasks, one)
	}
	look := func(measured time.Time, want ...string) {
		t.Helper()
		events := tells(func() { w.reportUnmeasured(tasks, measured, now) })
		must.Eq(t, append([]string{}, want...), saidIn(events))
		for _, event := range events {
			must.Eq(t, map[string]string{"reason": codeUnmeasured}, event.Annotations)
		}
	}
	const since = ", so this task is not held to its share: is the device plugin running?"
	look(now)
	look(now.Add(-usageMaxAge))
	look(now.Add(-usageMaxAge-time.Second), "old: GPU memory is not measured since 01:46:09"+since, "older: GPU memory is not measured since 01:46:09"+since)
	look(now.Add(-usageMaxAge - time.Second))
	look(now.Add(-usageMaxAge), "old: GPU memory is measured again", "older: GPU memory is measured again")
	look(time.Time{}, "old: GPU memory is not measured since 00:46:40"+since, "older: GPU memory is not measured since 23:46:40"+since)
}

// What the operator chose is done and said, once; a fault ends a task for a restart.
func TestWhatTheWatchdogDoes(t *testing.T) {
	d, env, _, cfg := besideFake(t)
	tells := listener(t, d)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err := d.tasks.get(cfg.ID)
	must.NoError(t, err)
	w := &watchdog{driver: d}
	v := violation{gpuA, codeMemory, "it uses too much"}
	events := tells(func() { w.act(one, v, config.WatchdogWarn); w.act(one, v, config.WatchdogWarn) })
	must.Eq(t, []string{"task: GPU limit exceeded: it uses too much"}, saidIn(events))
	must.Eq(t, map[string]string{"gpu": gpuA, "reason": codeMemory}, events[0].Annotations)
	must.False(t, one.exited())

	// Memory that was lent is said once.
	one.own.holdings.Store(&[]gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1024, MemoryLimitMiB: 4096}}})
	events = tells(func() {
		for _, mib := range []int64{1024, 1088, 1089, 4000, 900, 4000} {
			w.reportBorrowed(one, []gpu.TaskUsage{{UUID: gpuA, MemoryMiB: mib}, {UUID: gpuB, MemoryMiB: 9000}})
		}
	})
	must.Eq(t, []string{"task: GPU " + gpuA + ": the task uses 1089M of memory and is guaranteed 1G; NVIDIA's driver may end its programs when a neighbor wants the rest"}, saidIn(events))

	// A round does all of it: here the third measurement in a row, and the kill.
	one.own.holdings.Store(&[]gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1024}}})
	w = &watchdog{driver: d}
	began := time.Now()
	events = tells(func() {
		for i := range actAfter {
			measured := began.Add(time.Duration(i) * time.Second)
			_ = env.state.WriteUsage(gpu.Usage{MeasuredAt: measured, Tasks: []gpu.TaskUsage{{LeaseID: boxLease, UUID: gpuA, MemoryMiB: 4096, Processes: 1}}})
			if one.exited() {
				return
			}
			w.round(measured)
		}
	})
	must.Eq(t, []string{"task: GPU limit exceeded, killing the task: 1 processes use 4G of memory of GPU " + gpuA + " together, the task's share is 1G"}, saidIn(events))
	result := resultOf(t, d, cfg.ID)
	must.Eq(t, 137, result.ExitCode)
	must.True(t, result.OOMKilled)
	must.ErrorContains(t, result.Err, "killed by the GPU watchdog: 1 processes use 4G")
	eventually(t, "the kill is counted", func() bool {
		d.counts.mu.Lock()
		defer d.counts.mu.Unlock()
		return d.counts.all.Kills[codeMemory] == 1
	})
	noted, err := env.state.Notices()
	must.NoError(t, err)
	must.Eq(t, []topic{{Container: "box", UUID: gpuA, Code: codeMemory}}, noted.Told)
	must.Eq(t, []string{}, saidIn(tells(func() { w.round(began) })))
	noted, err = env.state.Notices()
	must.NoError(t, err)
	must.SliceEmpty(t, noted.Told, must.Sprint("what was told to a task that has ended is kept"))
}

// A task that cannot go on is ended for a restart, unless its author wants to be told alone.
func TestTasksThatCannotGoOn(t *testing.T) {
	for name, row := range map[string]struct {
		config taskconfig.Config
		ended  bool
	}{
		"restart": {taskconfig.Config{GPU: taskconfig.GPUConfig{OnFault: taskconfig.OnFaultRestart}}, true},
		"event":   {taskconfig.Config{GPU: taskconfig.GPUConfig{OnFault: taskconfig.OnFaultEvent}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d, _, _, cfg := besideFake(t)
			tells := listener(t, d)
			must.NoError(t, cfg.EncodeConcreteDriverConfig(row.config))
			must.NoError(t, d.RecoverTask(handleOf(cfg)))
			one, err := d.tasks.get(cfg.ID)
			must.NoError(t, err)
			w := &watchdog{driver: d}
			v := violation{gpuA, "xid-79", "the GPU is gone"}
			events := tells(func() { w.recoverTask(one, v); w.recoverTask(one, v) })
			if !row.ended {
				must.SliceEmpty(t, events)
				must.False(t, one.killed.Load())
				return
			}
			must.Eq(t, []string{"task: The task cannot go on, and is ended for Nomad to start it again: the GPU is gone"}, saidIn(events))
			must.Eq(t, map[string]string{"gpu": gpuA, "fault": "xid-79"}, events[0].Annotations)
			result := resultOf(t, d, cfg.ID)
			must.ErrorContains(t, result.Err, "ended for a restart: the GPU is gone")
			must.False(t, result.OOMKilled)
		})
	}
	must.Eq(t, taskconfig.OnFaultRestart, config.OnFault(&drivers.TaskConfig{}))
}

// The result of a task says why it ended, the first time that it does.
func TestResultsOfATask(t *testing.T) {
	d, env := alone(t)
	for name, row := range map[string]struct {
		exit    runtime.Exit
		problem error
		verdict error
		oom     bool
		says    string
	}{
		"an exit":                {exit: runtime.Exit{Code: 1}},
		"out of memory":          {exit: runtime.Exit{Code: 137, OOMKilled: true}, oom: true, says: "OOM Killed"},
		"and lost":               {exit: runtime.Exit{Code: 137, OOMKilled: true}, problem: errLost, oom: true, says: errLost.Error()},
		"too much of the GPU":    {exit: runtime.Exit{Code: 137}, verdict: errors.Join(violation{code: codeMemory, message: "too much"}), oom: true, says: "too much"},
		"another violation":      {exit: runtime.Exit{Code: 137}, verdict: violation{code: codeBesideMPS, message: "beside"}, says: "beside"},
		"a verdict, not its end": {exit: runtime.Exit{Code: 137}, problem: errLost, verdict: errors.New("why"), says: "why"},
	} {
		one := named(d, env, name, gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuA}, {UUID: gpuB}}})
		one.verdict = row.verdict
		must.Eq(t, drivers.TaskStateRunning, one.status().State)
		row.exit.At = time.Unix(1e9, 0)
		one.finish(row.exit, row.problem)
		one.finish(runtime.Exit{Code: 99}, nil)
		status := one.status()
		must.Eq(t, drivers.TaskStateExited, status.State, must.Sprint(name))
		must.Eq(t, row.exit.Code, status.ExitResult.ExitCode, must.Sprint(name))
		must.Eq(t, row.oom, status.ExitResult.OOMKilled, must.Sprint(name))
		must.True(t, status.CompletedAt.Equal(row.exit.At))
		must.Eq(t, map[string]string{"container_id": "box-" + name, "gpu.0": gpuA, "gpu.1": gpuB}, status.DriverAttributes)
		if row.says == "" {
			must.NoError(t, status.ExitResult.Err, must.Sprint(name))
		} else {
			must.ErrorContains(t, status.ExitResult.Err, row.says, must.Sprint(name))
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.tasks.running(over, "none", "none")
	must.ErrorIs(t, err, context.Canceled)
}
