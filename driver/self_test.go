// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// withSelf is a node whose operator has installed the program that tasks speak with.
func withSelf(t *testing.T, e *env) *env {
	t.Helper()
	self := goProgram(t, "plugin/nomad-gpu-self")
	e.driver.Shutdown() // two drivers would both keep the node's seats
	return e.with(func(c *config.Config) { c.SelfPath = self })
}

// in runs a command in a task, and returns what it printed.
func (e *env) in(cfg *drivers.TaskConfig, command ...string) (stdout, stderr string, code int) {
	e.t.Helper()
	result, err := e.harness.ExecTask(cfg.ID, command, callTimeout)
	must.NoError(e.t, err)
	return string(result.Stdout), string(result.Stderr), result.ExitResult.ExitCode
}

// askSelf has a task ask by its own program.
func (e *env) askSelf(cfg *drivers.TaskConfig, args ...string) gpu.SelfAnswer {
	e.t.Helper()
	out, problem, code := e.in(cfg, append(append([]string{"nomad-gpu-self"}, args...), "-json")...)
	must.Eq(e.t, 0, code, must.Sprint(out, problem))
	var a gpu.SelfAnswer
	must.NoError(e.t, json.Unmarshal([]byte(out), &a), must.Sprint(out))
	return a
}

// A task under MPS learns of its own share, and of its neighbors' together.
func TestATaskAsksAboutItsShare(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		mine := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1, 2, 3), func(cfg *drivers.TaskConfig) {
			cfg.User = "app"
			cfg.Env["GPU_SELF_SOCKET"] = "/local/mine.sock"
		})
		other := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 4, 5), func(cfg *drivers.TaskConfig) { cfg.JobID = "secret-job" })
		elsewhere := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuB, 4, 5))
		for _, cfg := range []*drivers.TaskConfig{mine, other, elsewhere} {
			e.start(cfg)
		}
		lease := func(cfg *drivers.TaskConfig) string { return gpu.LeaseID(cfg.AllocID, cfg.Name) }
		must.NoError(t, n.dir.WriteUsage(gpu.Usage{MeasuredAt: time.Now().UTC(), Tasks: []gpu.TaskUsage{
			{LeaseID: lease(mine), UUID: gpuA, MemoryMiB: 3000, Milli: 200, Processes: 2},
			{LeaseID: lease(other), UUID: gpuA, MemoryMiB: 1500, Milli: 100, Processes: 1},
			{LeaseID: lease(elsewhere), UUID: gpuB, MemoryMiB: 1111, Milli: 111, Processes: 1},
		}}))
		var got gpu.SelfGPU
		eventually(t, "it learns what was measured", func() bool {
			a := e.askSelf(mine, "status")
			must.Len(t, 1, a.Status.GPUs)
			got = a.Status.GPUs[0]
			return got.Use != nil
		})
		got.Use.MeasuredAt = time.Time{}
		must.Eq(t, gpu.SelfGPU{UUID: gpuA, Model: "Sim", Mode: gpu.ModeSlice, Sharing: gpu.SharingMPS, DeviceMiB: 16384,
			Share:     gpu.Share{MemoryMiB: 4096, GuaranteeMilli: 250, LimitMilli: 250},
			Use:       &gpu.SelfUse{MemoryMiB: 3000, Milli: 200, Processes: 2},
			Neighbors: gpu.SelfNeighbors{Tasks: 1, GuaranteeMilli: 125, MemoryMiB: 1500, Milli: 100}}, got)
		text, _, _ := e.in(mine, "nomad-gpu-self", "status")
		for _, want := range []string{"GPU " + gpuA + " Sim\n", "4G of memory, compute 0.25, at most 0.25", "1 task, 1500M of memory, compute 0.1, 0.125 guaranteed"} {
			must.StrContains(t, text, want)
		}
		for _, secret := range []string{"secret-job", other.AllocID, elsewhere.AllocID} {
			must.StrNotContains(t, text, secret)
		}
		for action, want := range map[string]string{"yield": `action: "yield" is not valid on GPU ` + gpuA, "want": `action: "want" is not valid on GPU ` + gpuA} {
			_, problem, code := e.in(mine, "nomad-gpu-self", action)
			must.Eq(t, 1, code)
			must.StrContains(t, problem, want)
		}
		// The socket is the driver's: root in the container cannot take it away, or the
		// places beside it.
		attack := `cd /run/nomad-gpu; for f in self.sock bin mps; do rm -rf $f; mv $f gone; chmod 0 $f; ln -sf /etc/passwd $f; done; echo x > mine
umount self.sock; umount /run/nomad-gpu; mount -o remount,rw /run/nomad-gpu; echo x > bin/nomad-gpu-self; ls; echo; env; id`
		out, _, _ := e.in(other, "sh", "-c", attack)
		must.SliceContains(t, lines(out), "self.sock")
		must.SliceContains(t, lines(out), "GPU_SELF_SOCKET=/run/nomad-gpu/self.sock")
		must.StrNotContains(t, out, "mine")
		must.Eq(t, 125, e.askSelf(other, "status").Status.GPUs[0].Share.GuaranteeMilli)
	})
}

// After the driver's death the task finds the socket of the next, with the same answers,
// and nothing is left when it has ended.
func TestTheSocketComesBackWithTheDriver(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1))
		e.start(cfg)
		before := e.askSelf(cfg, "status")
		for range 2 {
			e.restart()
			must.NoError(t, e.driver.RecoverTask(handleOf(cfg)))
			must.Eq(t, before.Status.GPUs[0].Share, e.askSelf(cfg, "status").Status.GPUs[0].Share)
		}
		e.end(cfg)
		left, err := os.ReadDir(filepath.Join(e.config.StateDir, "self"))
		must.NoError(t, err)
		must.Len(t, 0, left)
	})
}

// A task that shares the process IDs of another reaches its socket through /proc, and is
// refused there.
func TestAPartnersSocketIsRefused(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		victim := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1))
		e.start(victim)
		config := defaultTaskConfig("sleep", "1000")
		config.PIDMode = "task:web"
		partner := e.quietTask(config, reserve(gpuA, 2), func(cfg *drivers.TaskConfig) {
			cfg.Name, cfg.AllocID = "partner", victim.AllocID
			cfg.ID = victim.AllocID + "/partner/1"
		})
		e.start(partner)
		_, problem, code := e.in(partner, "sh", "-c", "GPU_SELF_SOCKET=/proc/1/root/run/nomad-gpu/self.sock nomad-gpu-self status")
		must.Eq(t, 1, code)
		must.True(t, strings.Contains(problem, "is not the task's") || strings.Contains(problem, "permission denied"), must.Sprint(problem))
		must.Eq(t, 1024, e.askSelf(partner, "status").Status.GPUs[0].Share.MemoryMiB)
	})
}

// A mount of the author's in the place of the socket is his affair.
func TestAMountInThePlaceOfTheSocket(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		said := listen(t, e)
		block := defaultTaskConfig("sleep", "1000")
		block.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: "/run", Size: "1M"}}
		cfg := e.quietTask(block, reserve(gpuA, allSlices()...))
		e.start(cfg)
		eventually(t, "it is told", func() bool {
			return said.has(cfg.ID, `the task has no /run/nomad-gpu/self.sock: the job's own mount at "/run" hides it`)
		})
		out, _, _ := e.in(cfg, "sh", "-c", "ls /run; env")
		must.StrNotContains(t, out, "GPU_SELF_SOCKET")
		// With all of a GPU, and without the program, a task has its socket all the same.
		e = e.with(func(c *config.Config) { c.SelfPath = "" })
		bare := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuB, allSlices()...))
		e.start(bare)
		out, _, _ = e.in(bare, "sh", "-c", "ls /run/nomad-gpu; env")
		must.SliceContains(t, lines(out), "self.sock")
		must.SliceContains(t, lines(out), "PATH=/bin")
	})
}

// A task with a seat leaves its GPU when it says so, and comes back when it says so.
func TestATaskStepsAsideByItself(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newSeatedNode(withSelf(t, e))
		e = n.e
		said := listen(t, e)
		cfg := n.task(50, 0)
		e.start(cfg)
		state := func(want gpu.SeatState) gpu.SelfSeat {
			t.Helper()
			var seat gpu.SelfSeat
			eventually(t, "it is "+string(want), func() bool {
				s := e.askSelf(cfg, "status").Status.GPUs[0].Seat
				if s != nil {
					seat = *s
				}
				return s != nil && s.State == want
			})
			return seat
		}
		state(gpu.SeatResident)
		must.StrContains(t, e.askSelf(cfg, "yield").Message, "leaves its GPU within a few seconds")
		seat := state(gpu.SeatSuspended)
		must.True(t, seat.Idle)
		must.Eq(t, seat.Since.Add(time.Hour), seat.NextTurn)
		eventually(t, "it is told that it left", func() bool {
			return said.has(cfg.ID, "suspended, its 10240 MiB of GPU memory moved to the host: it steps aside by itself")
		})
		e.askSelf(cfg, "want")
		state(gpu.SeatResident)
		eventually(t, "it is told", func() bool { return said.has(cfg.ID, "back on the GPU") })
	})
}

// What a task says of its work becomes an event that Nomad carries to the placement
// service: at once, and no more often than the others can bear.
func TestATaskSaysThatItsWorkIsSaved(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		events, err := e.driver.TaskEvents(t.Context())
		must.NoError(t, err)
		told := make(chan time.Time, 100)
		go func() {
			for event := range events {
				if at, err := time.Parse(time.RFC3339Nano, event.Annotations[gpu.SavedDetail]); err == nil {
					told <- at
				}
			}
		}()
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1))
		e.start(cfg)
		begun := time.Now()
		must.StrContains(t, e.askSelf(cfg, "saved").Message, "noted: the task's work is on disk as of 2")
		at := <-told
		must.True(t, !at.Before(begun) && !at.After(time.Now()), must.Sprint(at))
		must.StrContains(t, e.askSelf(cfg, "saved").Message, "the placement service is told in ")
		must.StrContains(t, e.askSelf(cfg, "saved").Message, "the placement service is told in ")
		must.Eq(t, 0, len(told))
	})
}

func TestSavedWorkIsToldNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w savedWork
		var told []time.Duration
		begun := time.Now()
		tell := func(at time.Time) { told = append(told, at.Sub(begun)) }
		say := func() { w.note(time.Now(), 59500*time.Millisecond, tell) } // never due in the instant of a say
		for range 90 {                                                     // every second
			say()
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Minute)
		say()
		say()
		w.stop()
		time.Sleep(10 * time.Minute)
		must.Eq(t, []time.Duration{0, 59 * time.Second, 89 * time.Second, 90*time.Second + 10*time.Minute}, told)
	})
}

func TestSavedWorkIsToldOnceWhereTimerAndTaskMeet(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			var w savedWork
			told := 0
			say := func() { w.note(time.Now(), time.Minute, func(time.Time) { told++ }) }
			say()
			time.Sleep(time.Second)
			say()
			time.Sleep(59 * time.Second) // the timer is due now, too
			say()
			synctest.Wait()
			must.Eq(t, 2, told)
			w.stop()
		})
	}
}
