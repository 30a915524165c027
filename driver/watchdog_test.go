// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// nextEvent is the next event that tells of something else than of measurements that
// stay away, and come again: on a busy machine they do.
func nextEvent(t *testing.T, events <-chan *drivers.TaskEvent) *drivers.TaskEvent {
	t.Helper()
	for {
		if event := anyEvent(t, events); !aboutMeasuring(event) {
			return event
		}
	}
}

func aboutMeasuring(event *drivers.TaskEvent) bool {
	return strings.HasPrefix(event.Message, "GPU memory is not measured") || event.Message == "GPU memory is measured again"
}

func anyEvent(t *testing.T, events <-chan *drivers.TaskEvent) *drivers.TaskEvent {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(patience):
		t.Fatal("no event came")
		return nil
	}
}

// watched starts a task on slices of GPU A, and returns it with the events that follow the
// one about its share.
func (n *node) watched(slices ...int) (*drivers.TaskConfig, <-chan *drivers.TaskEvent) {
	n.e.t.Helper()
	events, err := n.e.driver.TaskEvents(context.Background())
	must.NoError(n.e.t, err)
	cfg := n.e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, slices...))
	n.e.start(cfg)
	must.StrContains(n.e.t, nextEvent(n.e.t, events).Message, "GPU share: GPU "+gpuA)
	return cfg, events
}

func (n *node) measure(cfg *drivers.TaskConfig, mib int64, beside ...int) {
	n.e.t.Helper()
	must.NoError(n.e.t, n.dir.WriteUsage(usageOf(cfg, mib, beside...)))
}

func usageOf(cfg *drivers.TaskConfig, mib int64, beside ...int) gpu.Usage {
	return gpu.Usage{MeasuredAt: time.Now(), Tasks: []gpu.TaskUsage{
		{LeaseID: gpu.LeaseID(cfg.AllocID, cfg.Name), UUID: gpuA, MemoryMiB: mib, Milli: -1, Processes: 3, BesideMPS: beside},
	}}
}

// exceed measures the same again and again, as the device plugin does, until the
// watchdog says something.
func (n *node) exceed(events <-chan *drivers.TaskEvent, cfg *drivers.TaskConfig, mib int64, beside ...int) *drivers.TaskEvent {
	n.e.t.Helper()
	for late := time.After(patience); ; {
		n.measure(cfg, mib, beside...)
		select {
		case event := <-events:
			if !aboutMeasuring(event) {
				return event
			}
		case <-time.After(200 * time.Millisecond):
		case <-late:
			n.e.t.Fatal("no event came")
			return nil
		}
	}
}

// One measurement is none: it needs as many in a row as the documents say, each of
// them above the tolerance.
func TestWatchdogNeedsMeasurementsInARow(t *testing.T) {
	lease := gpu.Lease{ID: "l", Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1000}}, {UUID: gpuB, Share: gpu.Share{MemoryMiB: 10000}}}}
	for _, tc := range []struct {
		uuid   string
		mib    int64
		beside []int
		want   int
	}{
		{gpuA, 1064, nil, 0}, {gpuA, 1065, nil, 1},
		{gpuB, 10200, nil, 0}, {gpuB, 10201, nil, 1},
		{gpuA, 1, []int{7}, 1},
	} {
		if got := violations(lease, []gpu.TaskUsage{{LeaseID: "l", UUID: tc.uuid, MemoryMiB: tc.mib, BesideMPS: tc.beside}}); len(got) != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	withContainerd(t, func(t *testing.T, e *env) {
		cfg, events := newNode(e).watched(0)
		watched, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		// In a place of its own, where the driver's own watchdog does not look.
		measured, err := statedir.Open(t.TempDir(), "boot")
		must.NoError(t, err)
		w := watchdog{driver: e.driver}
		look := func(mib int64) {
			if err := measured.WriteUsage(usageOf(cfg, mib)); err != nil {
				t.Error(err)
			}
			w.look([]*task{watched}, measured, config.WatchdogWarn, time.Now())
		}
		go func() { // an event waits until it is read
			for range 3 {
				for range actAfter - 1 {
					look(5000)
				}
				look(100)
			}
			e.driver.emit(cfg, "so far nothing", nil)
			for range actAfter {
				look(5000)
			}
		}()
		must.Eq(t, "so far nothing", nextEvent(t, events).Message)
		must.StrContains(t, nextEvent(t, events).Message, "GPU limit exceeded")
	})
}

func TestTasksOfABrokenGPUAreStartedAgain(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		broken := gpu.Fault{Code: "xid-79", Message: "the GPU has fallen off the bus", Action: "replace it", Fatal: true}
		for name, tc := range map[string]struct {
			happens func(*gpu.GPUState)
			says    string
		}{
			"a fatal fault":     {func(s *gpu.GPUState) { s.Faults = []gpu.Fault{{Code: "xid-74"}, broken} }, "the GPU has fallen off the bus"},
			"the daemon's loss": {func(s *gpu.GPUState) { s.MPS.Generation = 4 }, "the MPS daemon that the task was a client of has ended"},
			"a client's fault":  {func(s *gpu.GPUState) { s.MPS.Ready, s.MPS.Fault = false, serverFaultSince(time.Now()) }, "a program had a fatal GPU error, which ended the GPU work of all programs on its MPS server"},
		} {
			t.Run(name, func(t *testing.T) {
				n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 3 })
				ends := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
				stays := defaultTaskConfig("sleep", "1000")
				stays.GPU.OnFault = taskconfig.OnFaultEvent
				told := e.task(stays, reserve(gpuA, 1))
				e.start(ends)
				e.start(told)
				// Nothing ends for a fault that lets programs go on.
				n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 3; s.Faults = []gpu.Fault{{Code: "xid-74"}} })
				n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 3; tc.happens(s) })
				result := e.wait(ends.ID)
				must.ErrorContains(t, result.Err, tc.says)
				must.False(t, result.OOMKilled)
				must.NotEq(t, 0, result.ExitCode)
				status, err := e.harness.InspectTask(told.ID)
				must.NoError(t, err)
				must.Eq(t, drivers.TaskStateRunning, status.State)
				must.NoError(t, e.harness.DestroyTask(told.ID, true))
			})
		}
	})
}

func TestWatchdogKillsAboveTheShare(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		events, err := e.driver.TaskEvents(context.Background())
		must.NoError(t, err)
		cfg := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1))
		e.start(cfg)
		must.StrContains(t, nextEvent(t, events).Message, "GPU share: GPU "+gpuA+", 2G memory, compute 0.125, at most 0.125")
		n.measure(cfg, 2048)
		n.publish(gpuA, func(s *gpu.GPUState) {
			s.Faults = []gpu.Fault{{Code: "xid-31", Message: "page fault", Action: "look at the task"}}
		})
		must.StrContains(t, nextEvent(t, events).Message, "page fault; look at the task")
		n.publish(gpuA, func(*gpu.GPUState) {})
		must.StrContains(t, nextEvent(t, events).Message, "xid-31 is over")
		must.StrContains(t, n.exceed(events, cfg, 2113).Message, "GPU limit exceeded, killing the task: 3 processes use 2113M of memory")
		result := e.wait(cfg.ID)
		must.True(t, result.OOMKilled)
		must.Eq(t, 137, result.ExitCode)
		must.ErrorContains(t, result.Err, "the task's share is 2G")
	})
}

func TestWatchdogFindsWhoSlippedPastMPS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		cfg, events := n.watched(0)
		must.StrContains(t, n.exceed(events, cfg, 10, 4711).Message, "GPU limit exceeded, killing the task")
		must.ErrorContains(t, e.wait(cfg.ID).Err, "processes [4711] use GPU "+gpuA+" without its MPS daemon")
	})
}

func TestTasksHearThatTheirMPSDaemonWasReplaced(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 3 })
		_, events := n.watched(0)
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 4 })
		must.StrContains(t, nextEvent(t, events).Message, "its MPS daemon ended and another one was started")
	})
}

func serverFaultSince(at time.Time) *gpu.Fault {
	return &gpu.Fault{Code: "mps-fault", Message: "process 70 had a fatal GPU error", Since: at.Truncate(time.Second), Fatal: true}
}

// Who is told whose program it was is told no more than is theirs.
func TestTasksHearOfAFaultOfTheirMPSServer(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		events, err := e.driver.TaskEvents(context.Background())
		must.NoError(t, err)
		config := defaultTaskConfig("sleep", "1000")
		config.GPU.OnFault = taskconfig.OnFaultEvent
		culprit, neighbor := e.task(config, reserve(gpuA, 0)), e.task(config, reserve(gpuA, 1))
		all := e.quietTask(config, reserve(gpuB, allSlices()...))
		for _, cfg := range []*drivers.TaskConfig{culprit, neighbor, all} {
			e.start(cfg)
			must.StrContains(t, nextEvent(t, events).Message, "GPU share")
		}
		heard := func(at time.Time) map[string]string {
			for _, uuid := range []string{gpuA, gpuB} {
				n.publish(uuid, func(s *gpu.GPUState) {
					s.MPS.Ready, s.MPS.Fault, s.MPS.FaultOf = false, serverFaultSince(at), gpu.LeaseID(culprit.AllocID, culprit.Name)
				})
			}
			said := map[string]string{}
			for range 2 {
				event := nextEvent(t, events)
				said[event.TaskID] = event.Message
			}
			return said
		}
		said := heard(time.Now())
		must.StrContains(t, said[culprit.ID], "a program of this task had a fatal GPU error")
		must.StrContains(t, said[neighbor.ID], "a program of another task had a fatal GPU error")
		must.StrContains(t, said[neighbor.ID], "CUDA calls of this task fail until it is restarted")
		must.StrNotContains(t, said[neighbor.ID], culprit.AllocID)
		n.publish(gpuA, func(*gpu.GPUState) {})
		for range 2 {
			must.StrContains(t, nextEvent(t, events).Message, "its MPS server takes programs again")
		}
		// Those who came later were not there.
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Fault = serverFaultSince(time.Now().Add(-time.Hour)) })
		n.publish(gpuA, func(s *gpu.GPUState) { s.Faults = []gpu.Fault{{Code: "next", Message: "the next event"}} })
		must.StrContains(t, nextEvent(t, events).Message, "the next event")
	})
}

func TestTasksAreToldOnceAlsoWhenTheDriverRestarts(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Generation = 3 })
		events, err := e.driver.TaskEvents(context.Background())
		must.NoError(t, err)
		config := defaultTaskConfig("sleep", "1000")
		config.GPU.OnFault = taskconfig.OnFaultEvent
		cfg := e.task(config, reserve(gpuA, 0))
		handle := e.start(cfg)
		must.StrContains(t, nextEvent(t, events).Message, "GPU share")
		old := gpu.Fault{Code: "xid-31", Message: "page fault"}
		restarted := func(s *gpu.GPUState) { s.MPS.Generation, s.Faults = 4, []gpu.Fault{old} }
		n.publish(gpuA, restarted)
		must.StrContains(t, nextEvent(t, events).Message, "page fault")
		must.StrContains(t, nextEvent(t, events).Message, "its MPS daemon ended")
		eventually(t, "it is noted", func() bool { told, err := n.dir.Notices(); return err == nil && len(told.Told) == 2 })

		e.driver.Shutdown()
		e.startDriver()
		events, err = e.driver.TaskEvents(context.Background())
		must.NoError(t, err)
		must.NoError(t, e.harness.RecoverTask(handle))
		n.publish(gpuA, func(s *gpu.GPUState) {
			restarted(s)
			s.Faults = append(s.Faults, gpu.Fault{Code: "xid-13", Message: "something new"})
		})
		must.StrContains(t, nextEvent(t, events).Message, "something new")
		n.publish(gpuA, func(s *gpu.GPUState) { restarted(s); s.Faults = nil })
		must.StrContains(t, nextEvent(t, events).Message, "xid-13 is over")
		must.StrContains(t, nextEvent(t, events).Message, "xid-31 is over")

		e.end(cfg)
		eventually(t, "the task is forgotten", func() bool { told, err := n.dir.Notices(); return err == nil && len(told.Told) == 0 })
	})
}

func TestWatchdogMayOnlyWarn(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.GPU.Watchdog = config.WatchdogWarn })
		n := newNode(e)
		cfg, events := n.watched(0)
		must.StrContains(t, n.exceed(events, cfg, 5000).Message, "GPU limit exceeded: ")
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
	})
}

func TestWatchdogKillsOnceContainerdIsBack(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		cfg, events := n.watched(0, 1)
		watched, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)

		e.containerd.kill()
		must.StrContains(t, n.exceed(events, cfg, 5000).Message, "GPU limit exceeded, killing the task")
		eventually(t, "the kill is under way", watched.killed.Load)
		e.containerd.start(t)
		must.ErrorContains(t, e.wait(cfg.ID).Err, "the task's share is 2G")
	})
}

func TestAKillThatFailedIsDoneAgain(t *testing.T) {
	one, above := &task{}, violation{message: "above its share"}
	must.True(t, one.markKilled(above))
	must.False(t, one.markKilled(above), must.Sprint("a kill is under way"))
	one.clearKilled()
	must.NoError(t, one.verdict)
	must.True(t, one.markKilled(above))
}

func TestTasksHearThatNobodyMeasuresThem(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg, events := newNode(e).watched(0, 1)
		one, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		begun := one.record.StartedAt
		w := watchdog{driver: e.driver}
		look := func(measured, now time.Time) {
			w.reportUnmeasured([]*task{one}, measured, now)
		}
		look(time.Time{}, begun.Add(usageMaxAge)) // the device plugin may be slow to begin
		go func() {
			look(begun, begun.Add(usageMaxAge+time.Second))
			look(begun, begun.Add(usageMaxAge+2*time.Second))
			look(begun.Add(time.Minute), begun.Add(time.Minute))
		}()
		must.StrContains(t, anyEvent(t, events).Message, "GPU memory is not measured since "+begun.UTC().Format(time.TimeOnly))
		must.Eq(t, "GPU memory is measured again", anyEvent(t, events).Message)
	})
}
