package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// fakeGroup is a control group whose files are a test's to write: a directory of its own,
// shown where the kernel's groups are.
func fakeGroup(t *testing.T) (path, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	parent := cgroupRoot
	if !unified() {
		parent = filepath.Join(cgroupRoot, "pids")
	}
	at, err := os.MkdirTemp(parent, "nomad-gpu-test-")
	if err != nil {
		t.Skip("control groups cannot be made here: ", err)
	}
	t.Cleanup(func() { must.NoError(t, unix.Rmdir(at)) })
	top := t.TempDir()
	must.NoError(t, unix.Mount(top, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	dir = filepath.Join(top, "box")
	must.NoError(t, os.Mkdir(dir, 0o755))
	return "/" + filepath.Base(at) + "/box", dir
}

// fill writes the files of a control group.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// Whoever empties a control group waits for the end of what is in it, as long as that may
// take, and says what does not end: its GPU must not be given to another.
func TestControlGroupsThatDoNotEmpty(t *testing.T) {
	t.Parallel()
	path, dir := fakeGroup(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	// The kernel is told to kill them, which they ignore.
	fill(t, dir, map[string]string{"cgroup.procs": itoa(noProcess), "cgroup.kill": ""})
	must.ErrorIs(t, emptyCgroup(over, path, unified()), context.Canceled)
	synctest.Test(t, func(t *testing.T) {
		must.ErrorIs(t, removeCgroup(t.Context(), path, unified()), errStillRuns)
	})
	must.DirExists(t, dir)
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.kill")))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "cgroup.kill"), 0o700))
	must.ErrorContains(t, emptyCgroup(t.Context(), path, unified()), "is a directory")

	// A group that is in use is busy, until it is not.
	must.NoError(t, os.RemoveAll(filepath.Join(dir, "cgroup.kill")))
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.procs")))
	busy := filepath.Join(dir, "busy")
	must.NoError(t, os.Mkdir(busy, 0o700))
	must.NoError(t, unix.Mount("t", busy, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(busy, unix.MNT_DETACH) })
	err := removeCgroup(over, path, unified())
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorIs(t, err, unix.EBUSY)
	synctest.Test(t, func(t *testing.T) {
		err := removeCgroup(t.Context(), path, unified())
		must.ErrorIs(t, err, errStillRuns)
		must.ErrorIs(t, err, unix.EBUSY)
	})
	must.NoError(t, unix.Unmount(busy, unix.MNT_DETACH))
	fill(t, dir, map[string]string{"left": ""})
	must.ErrorIs(t, removeCgroup(t.Context(), path, unified()), unix.ENOTEMPTY)
	must.NoError(t, os.Remove(filepath.Join(dir, "left")))
	must.NoError(t, removeCgroup(t.Context(), path, unified()))
	must.DirNotExists(t, dir)
}

// A control group that cannot be looked into does not count as empty, whoever looks.
func TestGroupsThatCannotBeLookedInto(t *testing.T) {
	path, dir := fakeGroup(t)
	fill(t, dir, map[string]string{"cgroup.procs": "many"})
	const says = "list processes of control group"
	d, env, fake, _ := besideFake(t)
	said := hear(d)
	lease := gpu.Lease{ID: "of the group", Container: "box", Cgroup: path, Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}}
	must.NoError(t, env.state.WriteLease(lease))
	one := known(d, env, lease)
	one.record.Lease.Cgroup = path

	_, err := (&seatHost{driver: d, uuid: gpuA}).Processes(lease.ID)
	must.ErrorContains(t, err, says)
	must.ErrorContains(t, d.killWithoutContainerd(one), says)
	must.False(t, one.exited())

	plan := &startPlan{env: env, share: spec.Share{OneUser: true, Holdings: lease.Holdings}}
	admit := func() error {
		return plan.oneUser(t.Context(), nil, nil, &specs.Spec{Process: &specs.Process{User: specs.User{UID: 7}}})
	}
	must.ErrorContains(t, admit(), says)
	pipe := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(pipe, "control"), []byte("#!/bin/sh\nread asked\ncase $asked in get_server_list) echo 100;; get_client_list*) echo 200;; esac\n"), 0o700))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: filepath.Join(pipe, "control"), PipeDir: filepath.Join(pipe, "pipe")}}))
	must.ErrorContains(t, d.terminateClients(one), says)

	// A task whose group cannot be emptied keeps its lease.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	d.ended(over, one, runtime.Exit{}, nil)
	must.False(t, one.exited())
	must.StrContains(t, said(), "an ended task keeps its lease until all its processes have ended: container=box")
	now, err := env.state.Lease(lease.ID)
	must.NoError(t, err)
	must.True(t, now.Live())

	// And one whose container is gone is not removed in part.
	c := env.runtime.Unloaded("box", "image", fake.containers["box"].Labels, one.record.encode())
	must.ErrorContains(t, d.removeWithLease(c), says)
	must.Eq(t, []string{"box"}, fake.holds())
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.procs")))
	must.NoError(t, admit())
	must.NoError(t, d.terminateClients(one))
	must.NoError(t, d.removeWithLease(c))
	must.SliceEmpty(t, fake.holds())
	must.DirNotExists(t, dir)
	spoil(t, env, "leases")
	must.Error(t, admit(), must.Sprint("who is on the server is not known"))
}

// The cores of a task are those that Nomad shares, or the operator is told.
func TestCoresThatCannotBeSet(t *testing.T) {
	path, dir := fakeGroup(t)
	d, env := alone(t)
	said := hear(d)
	one := known(d, env, gpu.Lease{})
	one.record.Lease.Cgroup = path
	one.sharedCores = t.TempDir()
	fill(t, one.sharedCores, map[string]string{"cpuset.effective_cpus": "0-3\n", "cpuset.cpus.effective": "0-3\n"})
	must.NoError(t, os.Mkdir(filepath.Join(dir, "cpuset.cpus"), 0o700))
	d.followCores(one)
	must.StrContains(t, said(), "a task may still run on cores that others have reserved: ")
	must.Eq(t, "", one.coresSeen)
	must.NoError(t, os.Remove(filepath.Join(dir, "cpuset.cpus")))
	fill(t, dir, map[string]string{"cpuset.cpus": ""})
	d.followCores(one)
	must.Eq(t, "0-3", one.coresSeen)
	text, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
	must.NoError(t, err)
	must.Eq(t, "0-3", string(text))

	// Where Nomad's own group cannot be read, the task does not start on any.
	files, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	must.NoError(t, err)
	own := filepath.Join(cgroupRoot, "cpuset")
	if unified() {
		files, own = []string{filepath.Join(cgroupRoot, "cgroup.procs")}, filepath.Join(cgroupRoot, "any")
	}
	resources := func(group string) *drivers.Resources {
		return &drivers.Resources{LinuxResources: &drivers.LinuxResources{CpusetCgroupPath: group}}
	}
	if len(files) == 0 {
		t.Skip("there are no control groups")
	}
	_, err = cpuset(resources(filepath.Join(files[0], "share", "task")), "", unified())
	must.ErrorContains(t, err, "read the node's shared cores: ")
	if shared, _ := sharedCPUs(partitionDir(resources(own), unified()), unified()); shared != "" {
		_, err = cpuset(resources(own), "many", unified())
		must.ErrorContains(t, err, "cpuset_cpus: ")
	}
}

// The limit of a task's GPU memory is set on its control group, which has to be there.
func TestGroupsThatAreHeldToGPUMemory(t *testing.T) {
	path, dir := fakeGroup(t)
	noted := filepath.Join(t.TempDir(), "noted")
	command := []string{"/bin/sh", "-c", `echo "$0 $@" >> ` + noted}
	before := gpu.Holding{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1024}}
	lease := gpu.Lease{Container: "box", Cgroup: path, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048, MemoryLimitMiB: 4096}}}}
	must.NoError(t, limitNow(t.Context(), lease, gpu.GPUState{Limiter: &gpu.MemoryLimiter{Command: command}}, before))
	p := &startPlan{record: record{Lease: lease}, share: spec.Share{MemoryLimits: []spec.MemoryLimit{{UUID: gpuA, Command: command, GuaranteeMiB: 1, LimitMiB: 2}}}}
	must.NoError(t, p.limitMemory(t.Context()))
	text, err := os.ReadFile(noted)
	must.NoError(t, err)
	said := lines(string(text))
	must.Len(t, 2, said)
	must.StrHasSuffix(t, path+" 2048 4096", said[0])
	must.StrHasSuffix(t, path+" 1 2", said[1])
	must.True(t, strings.HasPrefix(said[0], gpuA+" "+cgroupRoot))
	failing := gpu.GPUState{Limiter: &gpu.MemoryLimiter{Command: []string{"/bin/false"}}}
	must.ErrorContains(t, limitNow(t.Context(), lease, failing, before), "exit status 1")
	must.NoError(t, os.Remove(dir))
	must.ErrorContains(t, p.limitMemory(t.Context()), "is not there")
}
