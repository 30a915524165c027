// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Whatever step of a start fails, it and those before are undone, the last first, the start
// is counted by it, and what lasts as long as the start is let go.
func TestStepsAreUndoneTheLastFirst(t *testing.T) {
	broken := errors.New("broken")
	for name, row := range map[string]struct {
		fails, cancels, stays string
		done, outcome, says   string
	}{
		"nothing":          {done: "a b c d ", outcome: gpu.StartDone},
		"the first":        {fails: "a", done: "a -a ", outcome: "a", says: "broken"},
		"the second":       {fails: "b", done: "a b -a ", outcome: "b", says: "broken"},
		"the third":        {fails: "c", done: "a b c -c -a ", outcome: "c", says: "broken"},
		"the last":         {fails: "d", done: "a b c d -d -c -a ", outcome: "d", says: "broken"},
		"canceled":         {cancels: "c", done: "a b c -c -a ", outcome: gpu.StartStopped, says: "context canceled"},
		"and not undone":   {fails: "d", stays: "c", done: "a b c d -d -c ", outcome: "d", says: "what the start made could not be removed completely: c stays"},
		"canceled, failed": {fails: "b", cancels: "b", done: "a b -a ", outcome: gpu.StartStopped, says: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			d, env := alone(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			did := ""
			do := func(name string) func(*start, context.Context) error {
				return func(s *start, _ context.Context) error {
					if did += name + " "; name == "a" {
						s.claimed, s.plan = true, &startPlan{env: env, files: &taskFiles{}, record: record.Record{Lease: gpu.Lease{ID: "mine"}}}
						d.seats.setReady("mine", true)
					}
					if name == row.cancels {
						cancel()
					}
					if name == row.fails {
						return broken
					}
					return nil
				}
			}
			undo := func(name string) func(*start) error {
				return func(*start) error {
					if did += "-" + name + " "; name == row.stays {
						return errors.New(name + " stays")
					}
					return nil
				}
			}
			d.steps = []step{{"a", do("a"), undo("a")}, {"b", do("b"), nil}, {"c", do("c"), undo("c")}, {"d", do("d"), undo("d")}}
			_, err := d.start(ctx, &drivers.TaskConfig{}, nil)
			must.Eq(t, row.done, did)
			if row.says == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, row.says)
			}
			want := map[string]int64{gpu.StartDone: 0}
			want[row.outcome]++
			must.Eq(t, want, d.counts.all.Starts)
			must.False(t, d.seats.isReady("mine"))
			must.MapEmpty(t, d.seats.ready)
		})
	}
}

// What the driver does is counted, written when it has changed, and again when it could not
// be written.
func TestCountsAreWrittenWhenTheyChange(t *testing.T) {
	_, env := alone(t)
	var c counts
	c.start(gpu.StartDone, time.Second)
	c.start("image", time.Hour)
	c.pull(nil, 2*time.Second)
	c.pull(errLost, time.Hour)
	c.pull(errLost, time.Hour)
	saved := func() gpu.DriverCounts {
		t.Helper()
		must.NoError(t, c.save(env.state))
		all, err := env.state.DriverCounts()
		must.NoError(t, err)
		return all
	}
	all := saved()
	must.Eq(t, map[string]int64{gpu.StartDone: 1, "image": 1}, all.Starts)
	must.Eq(t, map[string]int64{gpu.PullDone: 1, gpu.PullFailed: 2}, all.Pulls)
	must.Eq(t, map[string]int64{codeMemory: 0, codeBesideMPS: 0}, all.Kills)
	want := gpu.NewDriverCounts()
	want.StartTimes.Add(time.Second)
	want.PullTimes.Add(2 * time.Second)
	must.Eq(t, want.StartTimes, all.StartTimes)
	must.Eq(t, want.PullTimes, all.PullTimes)

	must.NoError(t, env.state.WriteDriverCounts(gpu.NewDriverCounts()))
	must.Eq(t, map[string]int64{gpu.StartDone: 0}, saved().Starts, must.Sprint("nothing had changed"))
	c.start(gpu.StartDone, time.Second)
	path := filepath.Join(env.settings.StateDir, "driver.json")
	must.NoError(t, os.Remove(path))
	must.NoError(t, os.Mkdir(path, 0o700))
	must.Error(t, c.save(env.state))
	must.NoError(t, os.Remove(path))
	must.Eq(t, map[string]int64{gpu.StartDone: 2, "image": 1}, saved().Starts)
}

// A call that fails since containerd is away is made again until its time is over, and one
// that fails otherwise is not.
func TestCallsAreRepeatedWhileContainerdIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := status.Error(codes.Unavailable, "away")
		made := 0
		call := func(fails int, with error) func() error {
			made = 0
			return func() error {
				if made++; made <= fails {
					return with
				}
				return nil
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*retryDelay+retryDelay/2)
		defer cancel()
		begin := time.Now()
		must.NoError(t, retryTransient(ctx, call(3, away)))
		must.Eq(t, 4, made)
		must.Eq(t, 3*retryDelay, time.Since(begin))
		must.ErrorIs(t, retryTransient(ctx, call(3, os.ErrPermission)), os.ErrPermission)
		must.Eq(t, 1, made)
		must.ErrorIs(t, retryTransient(ctx, call(99, away)), away)
		must.Eq(t, 8, made)
	})
}

// A stop returns when the task has ended, and a signal reaches the task.
func TestStopsAndSignals(t *testing.T) {
	d, _, fake, cfg := besideFake(t)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err := d.tasks.get(cfg.ID)
	must.NoError(t, err)
	must.ErrorContains(t, d.SignalTask(cfg.ID, "loudly"), `signal "loudly" is none`)
	must.ErrorContains(t, d.StopTask(cfg.ID, time.Hour, "loudly"), `stop signal "loudly" is none`)
	fake.fail(codes.Internal, "Tasks/Kill")
	must.ErrorContains(t, d.SignalTask(cfg.ID, "SIGINT"), "Tasks/Kill")
	must.ErrorContains(t, d.kill(one), "Tasks/Kill")
	must.True(t, one.killed.Load())
	must.False(t, one.exited())
	fake.fail(codes.OK)
	must.NoError(t, d.StopTask(cfg.ID, time.Hour, "SIGTERM"))
	must.True(t, one.exited())
	must.False(t, one.killed.Load(), must.Sprint("of a kill that failed before"))
	must.Eq(t, 128+int(syscall.SIGTERM), resultOf(t, d, cfg.ID).ExitCode)
	must.NoError(t, d.StopTask(cfg.ID, time.Hour, "SIGTERM"), must.Sprint("it has ended"))

	d, _, _, cfg = besideFake(t)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	must.NoError(t, d.SignalTask(cfg.ID, "SIGINT"))
	must.Eq(t, 128+int(syscall.SIGINT), resultOf(t, d, cfg.ID).ExitCode)

	d, _, _, cfg = besideFake(t)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err = d.tasks.get(cfg.ID)
	must.NoError(t, err)
	must.NoError(t, d.StopTask(cfg.ID, time.Hour, "SIGKILL"))
	must.True(t, one.exited())
	must.True(t, one.killed.Load())
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	_, err = d.tasks.get(cfg.ID)
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
}

// A destroyed task is killed first; nothing of it stays.
func TestDestroyedTasks(t *testing.T) {
	d, env, fake, cfg := besideFake(t)
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err := d.tasks.get(cfg.ID)
	must.NoError(t, err)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	must.True(t, one.exited())
	must.True(t, one.killed.Load())
	must.SliceEmpty(t, fake.holds())
	lease, err := env.state.Lease(boxLease)
	must.NoError(t, err)
	must.False(t, lease.Live())
	must.ErrorIs(t, d.DestroyTask(cfg.ID, true), drivers.ErrTaskNotFound)

	// A task whose container is not known is ended with its lease.
	d, env, fake, cfg = besideFake(t)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	must.SliceEmpty(t, fake.holds())
	lease, err = env.state.Lease(boxLease)
	must.NoError(t, err)
	must.False(t, lease.Live())
	must.False(t, lease.EndedAt.IsZero())
}

// What stands in a lease is what a task has now, also for the process that takes it up; and
// the lease of a task that runs says so, whatever its record says.
func TestLeasesOfTasksThatAreTakenUp(t *testing.T) {
	d, env, fake, cfg := besideFake(t)
	now := gpu.Lease{ID: boxLease, AllocID: "alloc", Task: "web", Container: "box", Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{GuaranteeMilli: 77}}}}
	must.NoError(t, env.state.WriteLease(now))
	noted := record.Record{Version: record.Version, Lease: now}
	noted.Lease.Holdings = []gpu.Holding{{UUID: gpuA}}
	fake.add("box", fake.containers["box"].Labels, noted.Encode())
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	one, err := d.tasks.get(cfg.ID)
	must.NoError(t, err)
	must.Eq(t, 77, one.lease().Holdings[0].GuaranteeMilli)
	written, err := env.state.Lease(boxLease)
	must.NoError(t, err)
	must.Eq(t, gpu.PhaseRunning, written.Phase)
	must.Eq(t, 77, written.Holdings[0].GuaranteeMilli)
}

// A task that runs is told what it has, what hides its socket and what was left out.
func TestWhatATaskIsToldWhenItRuns(t *testing.T) {
	d, env, _, cfg := besideFake(t)
	tells := listener(t, d)
	c, err := env.runtime.Load(t.Context(), "box")
	must.NoError(t, err)
	lease, err := env.state.Lease(boxLease)
	must.NoError(t, err)
	lease.Phase = gpu.PhaseStarting
	cfg.Env = map[string]string{}
	watch := func(change func(s *start)) []string {
		t.Helper()
		s := &start{driver: d, cfg: cfg, container: c, plan: &startPlan{env: env, record: record.Record{Lease: lease}}}
		change(s)
		events := tells(func() { err = s.watchTask(t.Context()) })
		must.NoError(t, err)
		now, err := env.state.Lease(boxLease)
		must.NoError(t, err)
		must.Eq(t, gpu.PhaseRunning, now.Phase)
		_, err = d.tasks.get(cfg.ID)
		must.NoError(t, err)
		canceled, end := false, s.task.cancel
		s.task.cancel = func() { canceled = true; end() }
		must.NoError(t, s.forgetTask())
		must.True(t, canceled, must.Sprint("the task is watched on"))
		_, err = d.tasks.get(cfg.ID)
		must.ErrorIs(t, err, drivers.ErrTaskNotFound)
		return saidIn(events)
	}
	must.Eq(t, []string{}, watch(func(*start) {}))
	must.Eq(t, []string{"task: GPU share: GPU " + gpuA + ", all of it"}, watch(func(s *start) { s.plan.share.Holdings = lease.Holdings }))
	must.Eq(t, []string{"task: the task has no " + gpu.SelfSocket + `: the job's own mount at "/run" hides it`}, watch(func(s *start) { s.plan.selfHidden = "/run" }))
	must.Eq(t, []string{"task: left out of the environment, since the driver alone says which GPU a task has: " + gpu.EnvNVIDIAVisible}, watch(func(s *start) { s.cfg.Env[gpu.EnvNVIDIAVisible] = "all" }))
}

// A lease is claimed for a start, or not held by it.
func TestClaimsOfAStart(t *testing.T) {
	d, env := alone(t)
	held := []gpu.Holding{{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}}}
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "other", Container: "other", Phase: gpu.PhaseRunning, Holdings: held}))
	claim := func() (*start, error) {
		s := &start{driver: d, plan: &startPlan{env: env, cfg: &drivers.TaskConfig{}, record: record.Record{Lease: gpu.Lease{ID: "mine", Container: "mine", Phase: gpu.PhaseStarting, Holdings: held}}}}
		return s, s.claimLease(t.Context())
	}
	s, err := claim()
	must.True(t, structs.IsRecoverable(err))
	must.False(t, s.claimed)
	must.NoError(t, s.endLease())
	_, err = env.state.Lease("mine")
	must.Error(t, err)
	must.NoError(t, env.state.RemoveLease("other"))
	s, err = claim()
	must.NoError(t, err)
	must.True(t, s.claimed)
	must.NoError(t, s.endLease())
	lease, err := env.state.Lease("mine")
	must.NoError(t, err)
	must.False(t, lease.Live())
	spoil(t, env, "leases")
	must.Error(t, s.endLease())
}

// A start gives its place back when it ends, and while it waits for something else.
func TestPlacesOfStarts(t *testing.T) {
	d, _, _, cfg := besideFake(t)
	room := d.starts.room
	room.SetLimit(1)
	_, _, err := d.StartTask(cfg)
	must.NoError(t, err)
	must.Zero(t, room.Taken())
	must.MapEmpty(t, d.starts.flight)

	next := &drivers.TaskConfig{ID: "next"}
	must.NoError(t, d.starts.enter(t.Context(), next))
	must.Zero(t, room.Taken(), must.Sprint("it is no start"))
	ctx, done, err := d.starts.begin(t.Context(), next)
	must.NoError(t, err)
	must.NoError(t, d.starts.enter(ctx, next))
	must.Eq(t, 1, room.Taken())
	d.starts.leave(&drivers.TaskConfig{ID: "none"})
	must.Eq(t, 1, room.Taken())
	must.NoError(t, d.starts.aside(ctx, next, func() error {
		must.Zero(t, room.Taken())
		return nil
	}))
	must.Eq(t, 1, room.Taken())
	must.ErrorIs(t, d.starts.aside(ctx, next, func() error { return errLost }), errLost)
	must.Zero(t, room.Taken())
	d.starts.leave(next)
	must.Zero(t, room.Taken())
	must.NoError(t, ctx.Err())
	done()
	must.ErrorIs(t, ctx.Err(), context.Canceled)
}
