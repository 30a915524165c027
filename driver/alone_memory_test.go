// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// limitFiles are files as the kernel has them in a control group: those of memory, and of
// memory and swap.
func limitFiles(t *testing.T, values ...string) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i, value := range values {
		path := filepath.Join(dir, fmt.Sprint("limit", i))
		must.NoError(t, os.WriteFile(path, []byte(value), 0o600))
		paths = append(paths, path)
	}
	return paths
}

func contents(t *testing.T, paths []string) (all []string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		all = append(all, string(text))
	}
	return all
}

// A task that moves to the host gets room there and keeps the swap that it had, both or
// neither.
func TestMemoryLimitsMoveTogether(t *testing.T) {
	const none = "9223372036854771712"
	for name, row := range map[string]struct {
		have []string
		to   int64
		want []string
	}{
		"raised":                       {[]string{"2000", "5000"}, 3000, []string{"3000", "6000"}},
		"lowered":                      {[]string{"5000", "7000"}, 2000, []string{"2000", "4000"}},
		"as it is":                     {[]string{"2000", "5000"}, 2000, []string{"2000", "5000"}},
		"without one of swap":          {[]string{"2000", none}, 3000, []string{"3000", none}},
		"of a kernel that counts none": {[]string{"2000"}, 3000, []string{"3000"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := limitFiles(t, row.have...)
			must.NoError(t, setMemoryLimits(slices.Clone(files), "", row.to))
			must.Eq(t, row.want, contents(t, files))
		})
	}
	t.Run("neither", func(t *testing.T) {
		files := limitFiles(t, "2000", "5000")
		must.NoError(t, os.Remove(files[0]))
		must.ErrorIs(t, setMemoryLimits(files, "", 3000), os.ErrNotExist)
		files = limitFiles(t, "2000", "many")
		must.ErrorContains(t, setMemoryLimits(files, "", 3000), "invalid syntax")
		must.Eq(t, []string{"2000", "many"}, contents(t, files))
		// A number that the kernel lets no process write: the first limit is put back.
		files = append(limitFiles(t, "2000"), "/proc/sys/kernel/ngroups_max")
		must.ErrorContains(t, setMemoryLimits(files, "", 1000), files[1])
		must.Eq(t, []string{"2000"}, contents(t, files[:1]))
	})
}

// A limit for which the kernel would kill the task's processes is not set; what it has read
// of files can be given up, and does not count.
func TestALimitThatWouldKillIsRefused(t *testing.T) {
	dir := t.TempDir()
	usage := filepath.Join(dir, "memory.current")
	must.ErrorIs(t, checkUsage(usage, 1000), os.ErrNotExist)
	must.NoError(t, checkUsage("", 1000), must.Sprint("cgroup v1 refuses it itself"))
	uses := func(bytes, files int) {
		t.Helper()
		must.NoError(t, os.WriteFile(usage, []byte(itoa(bytes)), 0o600))
		must.NoError(t, os.WriteFile(filepath.Join(dir, "memory.stat"), []byte("anon 1\ninactive_file "+itoa(files)+"\n"), 0o600))
	}
	uses(1000, 0)
	must.NoError(t, checkUsage(usage, 1000))
	uses(1300, 300)
	must.NoError(t, checkUsage(usage, 1000))
	uses(1301, 300)
	must.ErrorIs(t, checkUsage(usage, 1000), seats.ErrInUse)
	files := limitFiles(t, "2000")
	must.ErrorIs(t, setMemoryLimits(files, usage, 1000), seats.ErrInUse)
	must.Eq(t, []string{"2000"}, contents(t, files))
	must.NoError(t, os.Remove(filepath.Join(dir, "memory.stat")))
	must.ErrorIs(t, checkUsage(usage, 1000), os.ErrNotExist)
	uses(1000, 0)
	must.NoError(t, os.Remove(filepath.Join(dir, "memory.stat")))
	must.NoError(t, checkUsage(usage, 1000), must.Sprint("below the limit nothing else is looked at"))
}

// What the device plugin's program cannot be asked, or answers wrongly, is told: a task
// whose state is not known is never taken for one that was moved.
func TestSuspendersThatDoNotAnswer(t *testing.T) {
	d, env := alone(t)
	host := &seatHost{driver: d, uuid: gpuA}
	ask := func() error {
		_, err := host.Checkpoint(t.Context(), gpu.CheckpointRequest{Action: gpu.CheckpointLook})
		return err
	}
	must.Error(t, ask())
	program := func(suspender *gpu.Suspender) {
		t.Helper()
		s := gpu.GPUState{UUID: gpuA}
		if suspender != nil {
			s.Seats = &gpu.SeatRules{Suspender: *suspender}
		}
		must.NoError(t, env.state.WriteGPU(s))
	}
	for _, none := range []*gpu.Suspender{nil, {}} {
		program(none)
		must.ErrorContains(t, ask(), "the device plugin names no program for that")
	}
	program(&gpu.Suspender{Command: []string{"/bin/sh", "-c", "echo it is well"}})
	must.ErrorContains(t, ask(), "read the answer of /bin/sh")
	program(&gpu.Suspender{Command: []string{"/nowhere/program"}})
	must.ErrorIs(t, ask(), os.ErrNotExist)
	program(&gpu.Suspender{Command: []string{"/bin/sh", "-c", `cat >/dev/null; echo '{"failure":"busy","message":"hung"}'`}})
	answer, err := host.Checkpoint(t.Context(), gpu.CheckpointRequest{Action: gpu.CheckpointLook})
	must.NoError(t, err)
	must.Eq(t, gpu.FailureBusy, answer.Failure)
}

// Whose lease is not there has no processes, and no limit is set for it.
func TestSeatsOfTasksThatAreGone(t *testing.T) {
	d, env := alone(t)
	host := &seatHost{driver: d, uuid: gpuA}
	_, processesErr := host.Processes("none")
	_, limitErr := host.MemoryLimit("none")
	for name, err := range map[string]error{"processes": processesErr, "limit": limitErr, "set limit": host.SetMemoryLimit("none", 1)} {
		must.Error(t, err, must.Sprint(name))
	}
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "gone", Container: "box", Cgroup: "/nowhere/box"}))
	limit, err := host.MemoryLimit("gone")
	must.NoError(t, err)
	must.Eq(t, 0, limit)
	must.NoError(t, host.SetMemoryLimit("gone", 1))
	pids, err := host.Processes("gone")
	must.NoError(t, err)
	must.SliceEmpty(t, pids)
}

// An unknown reading of a device moves no task on it.
func TestSeatsOfDevicesThatAreNotKnown(t *testing.T) {
	d, env := alone(t)
	step := func() error { return d.seatStep(env.state, gpuA, &seatDevice{}) }
	must.Error(t, step())
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA}))
	must.ErrorContains(t, step(), "tasks no longer step aside for each other on GPU "+gpuA)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Seats: &gpu.SeatRules{SwitchPercent: 10}}))
	must.NoError(t, step())
	for _, name := range []string{"leases/spoiled.json", "usage.json", "seats/" + gpuA + ".json"} {
		path := filepath.Join(env.settings.StateDir, name)
		_ = os.Remove(path)
		must.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		must.Error(t, step(), must.Sprint(name))
		must.NoError(t, os.Remove(path))
		must.NoError(t, step(), must.Sprint(name))
	}
	d.seats.noteHost(must1(d.seats.device(gpuA)), 300)
	d.seats.noteHost(must1(d.seats.device(gpuB)), 50)
	must.Eq(t, 50, d.seats.othersMiB(gpuA))
	must.Eq(t, 300, d.seats.othersMiB(gpuB))

	// A start that waits for a seat ends with its context, or with the rules.
	s := &start{driver: d, plan: &startPlan{env: env, record: record.Record{Lease: gpu.Lease{ID: "mine", Holdings: []gpu.Holding{{UUID: gpuA, SeatMiB: 1}}}}}}
	s.cfg = known(d, env, gpu.Lease{}).cfg
	over, cancel := context.WithCancel(t.Context())
	cancel()
	must.ErrorIs(t, s.awaitSeat(over), context.Canceled)
	must.NoError(t, env.state.RemoveGPU(gpuA))
	must.ErrorContains(t, s.awaitSeat(over), "the device plugin no longer says how its tasks step aside for each other")
}

func must1[T any](one T, _ bool) T { return one }

// A program that sets a limit of GPU memory, and fails, is told with its output.
func TestLimitersThatFail(t *testing.T) {
	must.ErrorContains(t, runLimiter(t.Context(), nil), "the device plugin names no program for that")
	must.ErrorContains(t, runLimiter(t.Context(), []string{"/bin/sh", "-c", "echo no room >&2; exit 3"}), "exit status 3: no room")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	must.ErrorContains(t, runLimiter(over, []string{"/bin/true"}), "/bin/true does not answer")
	must.NoError(t, runLimiter(t.Context(), []string{"/bin/sh", "-c", `test "$0 $1" = "a b"`}, "a", "b"))

	_, err := cgroups.Dir("/nowhere/box")
	must.ErrorContains(t, err, "the control group /nowhere/box is not there")
	before := gpu.Holding{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1024}}
	after := gpu.Lease{Container: "box", Cgroup: "/nowhere/box", Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048}}}}
	must.ErrorContains(t, limitNow(t.Context(), after, gpu.GPUState{}, before), "the device plugin names no program for that")
	must.ErrorContains(t, limitNow(t.Context(), after, gpu.GPUState{Limiter: &gpu.MemoryLimiter{Command: []string{"/bin/true"}}}, before), "is not there")
	must.NoError(t, limitNow(t.Context(), after, gpu.GPUState{}, after.Holdings[0]), must.Sprint("the same limit needs no program"))
}
