// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/output"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// What a start keeps on the host is made whole, or the start ends with what could not be.
func TestStartsWhoseHostResourcesFail(t *testing.T) {
	for name, row := range map[string]struct {
		spoiled, says string
		change        func(p *startPlan)
	}{
		"nothing":       {},
		"its stage":     {spoiled: "stages", says: "stages"},
		"its socket":    {spoiled: "self", says: "make the directory of the task's socket: "},
		"shared memory": {spoiled: "shm", says: "shm"},
		"a file of its": {change: func(p *startPlan) { _ = p.files.shown[0].handle.Close() }, says: "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := allocated(t)
			d, env := alone(t)
			p := &startPlan{env: env, cfg: cfg, config: taskconfig.Config{IPCMode: "shareable", ShmSize: "1M"}, record: record.Record{Lease: gpu.Lease{Container: "box"}}}
			p.share.Holdings, p.share.Env = []gpu.Holding{{UUID: gpuA}}, map[string]string{}
			var err error
			p.files, err = openTaskFiles(cfg, p.config, taskconfig.Policy{})
			must.NoError(t, err)
			defer p.files.close()
			if row.spoiled != "" {
				spoil(t, env, row.spoiled)
			}
			if row.change != nil {
				row.change(p)
			}
			err = p.prepare(t.Context())
			if row.spoiled != "" {
				must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, row.spoiled)))
			}
			must.NoError(t, d.removeHostResources("box"))
			if row.says == "" {
				must.NoError(t, err)
				must.Eq(t, filepath.Join(env.settings.StateDir, "shm", "box"), p.shmDir)
				must.Eq(t, "", p.selfHidden)
				return
			}
			must.ErrorContains(t, err, row.says)
		})
	}
	// A mount of Nomad's hides the socket as well as one of the author's.
	_, env := alone(t)
	p := &startPlan{env: env, cfg: &drivers.TaskConfig{Mounts: []*drivers.MountConfig{{TaskPath: gpu.SelfDir + "/"}}}, share: spec.Share{Holdings: []gpu.Holding{{UUID: gpuA}}}}
	must.NoError(t, p.prepareSelf("box"))
	must.Eq(t, gpu.SelfDir, p.selfHidden)
}

// Mounts that cannot be placed in the container stop the start: without one of them a task
// would write elsewhere, or see what it should not.
func TestMountsThatCannotBePlaced(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	bound := func(source, target string, options ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: target, Options: append([]string{"rbind"}, options...)}
	}
	for name, row := range map[string]struct {
		change func(p *startPlan, root string, s *specs.Spec) error
		says   string
	}{
		"nothing": {},
		"a circle": {func(_ *startPlan, root string, _ *specs.Spec) error {
			return os.Symlink("proc", filepath.Join(root, "proc"))
		}, "proc"},
		"a working directory": {func(_ *startPlan, _ string, s *specs.Spec) error { s.Process.Cwd = "/circle/x"; return nil }, "circle"},
		"a target":            {func(_ *startPlan, _ string, s *specs.Spec) error { s.Mounts[1].Destination = "/circle/x"; return nil }, "circle"},
		"a source":            {func(_ *startPlan, _ string, s *specs.Spec) error { s.Mounts[0].Source = "/nowhere"; return nil }, `mount "/data/sub" in "/data": `},
		"one for the host": {func(_ *startPlan, _ string, s *specs.Spec) error {
			s.Mounts[0].Options = []string{"rbind", "rshared"}
			return nil
		}, "the host would get the mount as well"},
		"one that is gone": {func(p *startPlan, _ string, s *specs.Spec) error {
			s.Mounts = append(s.Mounts, bound(filepath.Join(p.stage.Dir(), "none"), "/more"))
			return nil
		}, "none"},
		"a stage that is gone": {func(p *startPlan, _ string, _ *specs.Spec) error { return rooted.RemoveStage(p.stage.Dir()) }, `mount "/data/sub" in "/data": `},
	} {
		t.Run(name, func(t *testing.T) {
			_, env := alone(t)
			p := &startPlan{env: env, cfg: &drivers.TaskConfig{}, files: &taskFiles{}}
			must.NoError(t, p.setStage("box"))
			defer func() { must.NoError(t, rooted.RemoveStage(p.stage.Dir())) }()
			root, outer, inner := t.TempDir(), t.TempDir(), t.TempDir()
			must.NoError(t, os.Mkdir(filepath.Join(outer, "sub"), 0o755))
			must.NoError(t, os.Symlink("circle", filepath.Join(root, "circle")))
			s := &specs.Spec{Process: &specs.Process{Cwd: "/"}, Mounts: []specs.Mount{bound(outer, "/data", "rslave"), bound(inner, "/data/sub", "rprivate")}}
			if row.change != nil {
				must.NoError(t, row.change(p, root, s))
			}
			err := p.placeMounts(root, s)
			if row.says != "" {
				must.ErrorContains(t, err, row.says)
				return
			}
			must.NoError(t, err)
			must.Len(t, 1, s.Mounts)
			must.Eq(t, []string{"rbind", "slave"}, s.Mounts[0].Options[:2])
		})
	}
}

// What a plan cannot turn into a container is named before there is one.
func TestContainersThatCannotBeMade(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	_, env := alone(t)
	p := &startPlan{env: env, files: &taskFiles{}, cfg: &drivers.TaskConfig{Name: "web"}}
	p.config.Hostname = "own"
	p.cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: "group", Address: "10.0.0.1"}}
	must.NoError(t, p.setStage("box"))
	defer func() { must.NoError(t, rooted.RemoveStage(p.stage.Dir())) }()
	content, err := p.hostsFile()
	must.NoError(t, err)
	must.StrContains(t, content, "\n10.0.0.1 own group\n")
	p.namespaces.Network, p.config.ExtraHosts = "/nowhere", []string{"gate:host-gateway"}
	_, err = p.hostsFile()
	must.ErrorContains(t, err, "extra_hosts: gate:host-gateway: read routes: ")
	p.config.ExtraHosts = nil

	p.cfg.Mounts = []*drivers.MountConfig{{TaskPath: "/vol", PropagationMode: "sideways"}}
	_, err = p.create(t.Context(), runtime.Image{})
	must.ErrorContains(t, err, `volume at "/vol": propagation "sideways"`)
	p.share.HAMi = true
	must.NoError(t, os.Mkdir(filepath.Join(p.stage.Dir(), "ld.so.preload"), 0o700))
	_, err = p.create(t.Context(), runtime.Image{})
	must.ErrorContains(t, err, "ld.so.preload")
	must.NoError(t, os.Remove(filepath.Join(p.stage.Dir(), "ld.so.preload")))
}

// A start that fails on the way to its program says at what.
func TestStepsOfAStartThatFail(t *testing.T) {
	d, env, fake, cfg := besideFake(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for image, says := range map[*taskconfig.Config]string{
		{Image: "example.test/box:1", ForcePull: true, ImagePullTimeout: "soon"}: "image_pull_timeout: ",
		{Image: "example.test/box:1", ForcePull: true, ImagePullTimeout: "5m"}:   context.Canceled.Error(),
	} {
		_, err := d.image(over, env, cfg, *image)
		must.ErrorContains(t, err, says)
	}

	// The task whose namespace is to be joined cannot be looked at.
	must.NoError(t, d.RecoverTask(handleOf(cfg)))
	fake.fail(codes.Internal, "Tasks/Get")
	_, _, err := d.partner(t.Context(), cfg.AllocID, cfg.Name, "net")
	must.ErrorContains(t, err, `task "web": `)
	must.ErrorContains(t, err, "Tasks/Get")

	// Where it is not marked that the output was opened, the next start would open it again.
	s := &start{driver: d, cfg: cfg, plan: &startPlan{env: env}}
	s.output, err = output.Open(cfg, outputMarks(env.settings))
	must.NoError(t, err)
	spoil(t, env, "outputs")
	must.ErrorContains(t, s.runContainer(t.Context()), "mark the task's output: ")
}

// A change of a task's share that the GPU's driver does not make is taken back.
func TestSharesThatGoBack(t *testing.T) {
	d, env := alone(t)
	holding := gpu.Holding{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}, Share: gpu.Share{MemoryMiB: 1024}}
	mine := known(d, env, gpu.Lease{ID: "mine", Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{holding}})
	written := mine.record.Lease
	written.Phase = gpu.PhaseRunning
	must.NoError(t, env.state.WriteLease(written))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Slices: 16, SliceMemoryMiB: 1024, Sharing: gpu.SharingMPS, Limiter: &gpu.MemoryLimiter{Command: []string{"/bin/true"}}}))
	limit := int64(2048)
	_, err := selfOf{d, mine}.resize(t.Context(), gpu.SelfResize{MemoryLimitMiB: &limit})
	must.ErrorContains(t, err, "resize: memory_limit: the GPU's driver was not changed: ")
	now, err := env.state.Lease("mine")
	must.NoError(t, err)
	must.Eq(t, gpu.PhaseRunning, now.Phase)
	must.Eq(t, 0, now.Holdings[0].MemoryLimitMiB)
	must.Eq(t, 0, mine.lease().Holdings[0].MemoryLimitMiB)

	// Nor is one made for which the watchdog would kill the task.
	holding.MemoryLimitMiB = 4096
	written.Holdings = []gpu.Holding{holding}
	must.NoError(t, env.state.WriteLease(written))
	mine.own.holdings.Store(&written.Holdings)
	mine.own.last, d.selfView.at = time.Time{}, time.Time{}
	must.NoError(t, env.state.WriteUsage(gpu.Usage{MeasuredAt: time.Now(), Tasks: []gpu.TaskUsage{{LeaseID: "mine", UUID: gpuA, MemoryMiB: 3000}}}))
	_, err = selfOf{d, mine}.resize(t.Context(), gpu.SelfResize{MemoryLimitMiB: &limit})
	must.ErrorContains(t, err, "the task uses 3000M now")
}

// Partitions that the daemon does not make are told, and those that it does not remove stay
// for the next task.
func TestPartitionsThatTheDaemonRefuses(t *testing.T) {
	for name, row := range map[string]struct{ script, spoiled, says string }{
		"nothing": {script: `*add*) echo ` + gpuA + `/p2;; *) sed -i /p1/d $(dirname $0)/table;;`},
		"to list": {script: `lspart) exit 3;;`, says: "exit status 3"},
		"to make": {script: `*add*) exit 4;; *) echo;;`, says: "exit status 4"},
		"leases":  {script: `*) echo;;`, spoiled: "leases", says: "leases"},
		"to take": {script: `*add*) echo ` + gpuA + `/p2;; *) exit 5;;`},
	} {
		t.Run(name, func(t *testing.T) {
			d, env := alone(t)
			said := hear(d)
			dir := t.TempDir()
			control := filepath.Join(dir, "control")
			table := "GPU Partition free used SM\n" + gpuA + " 3 1 60 20\n" + gpuA + " p1 1 20 No\n"
			cgroupstest.Fill(t, dir, map[string]string{"table": table})
			script := "#!/bin/sh\nread q\ncase $q in " + row.script + "\nesac\n"
			if name != "to list" {
				script = "#!/bin/sh\nread q\ncase $q in lspart) cat " + dir + "/table;; " + row.script + "\nesac\n"
			}
			must.NoError(t, os.WriteFile(control, []byte(script), 0o700))
			must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: control, PipeDir: filepath.Join(dir, "pipe")}}))
			p := &startPlan{env: env, record: record.Record{Lease: gpu.Lease{ID: "mine", Container: "box", Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 3, Partition: &gpu.Partition{Chunks: 1}}}}}}
			p.share.Env = map[string]string{}
			if row.spoiled != "" {
				spoil(t, env, row.spoiled)
			}
			err := d.takePartition(t.Context(), p)
			if row.says != "" {
				must.ErrorContains(t, err, "the task gets no multiprocessors of its own: ")
				must.ErrorContains(t, err, row.says)
				must.Eq(t, "", p.record.Lease.Holdings[0].Partition.ID)
				return
			}
			must.NoError(t, err)
			must.Eq(t, "p2", p.record.Lease.Holdings[0].Partition.ID)
			if name == "to take" {
				must.StrContains(t, said(), "a partition that no task has stays: ")
			} else {
				must.StrNotContains(t, said(), "stays")
			}
		})
	}
}

// While containerd is away, a task of which nothing is noted may still run: it is not taken
// for one that is gone.
func TestTasksOfWhichNothingIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, env := alone(t)
		defer time.Sleep(time.Minute) // until the connection is given up
		defer d.Shutdown()
		cfg := &drivers.TaskConfig{ID: "task", Name: "web", NodeID: "node"}
		check := func(says string) {
			t.Helper()
			recoverErr, stopErr, destroyErr := d.RecoverTask(handleOf(cfg)), d.StopTask(cfg.ID, time.Hour, ""), d.DestroyTask(cfg.ID, true)
			must.ErrorContains(t, recoverErr, `recover task "task": `)
			for _, err := range []error{recoverErr, stopErr, destroyErr} {
				must.ErrorContains(t, err, says)
				must.True(t, runtime.Transient(err), must.Sprint(err))
			}
			_, err := d.tasks.get(cfg.ID)
			must.ErrorIs(t, err, drivers.ErrTaskNotFound)
		}
		check("list containers: ")
		spoil(t, env, "tasks")
		check("tasks")
	})
}

// What lasts as long as a start ends with it, whatever came of it: files stay open else, a
// lease is never ended, and a seat is kept for a task that does not come.
func TestWhatAStartHoldsIsLetGo(t *testing.T) {
	cfg := allocated(t)
	d, env := alone(t)
	s := &start{driver: d, cfg: cfg, claimed: true, plan: &startPlan{env: env, record: record.Record{Lease: gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: gpuA}}}}}}
	var err error
	s.plan.files, err = openTaskFiles(cfg, taskconfig.Config{}, taskconfig.Policy{})
	must.NoError(t, err)
	must.NoError(t, d.leases.Claim(s.plan.record.Lease))
	d.seats.setReady("mine", true)
	started, err := d.leases.Started()
	must.NoError(t, err)
	must.SliceEmpty(t, started)
	pipe := filepath.Join(cfg.AllocDir, "alloc", "logs", ".web.stdout.fifo")
	must.NoError(t, unix.Mkfifo(pipe, 0o600))
	cfg.StdoutPath = pipe
	s.output, err = output.Open(cfg, outputMarks(env.settings))
	must.NoError(t, err)
	must.Positive(t, openedAs(t, pipe))
	s.release()
	must.Zero(t, openedAs(t, pipe))
	for _, file := range s.plan.files.shown {
		_, err := file.handle.HostPath()
		must.ErrorContains(t, err, "closed", must.Sprint(file.name))
	}
	started, err = d.leases.Started()
	must.NoError(t, err)
	must.Len(t, 1, started)
	must.False(t, d.seats.isReady("mine"))
	(&start{driver: d}).release()
}

// openedAs counts this process's descriptors of a file.
func openedAs(t *testing.T, path string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	must.NoError(t, err)
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && name == path {
			n++
		}
	}
	return n
}
