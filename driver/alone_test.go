// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// unconfigured is a driver that was told nothing.
func unconfigured(t *testing.T) *Driver {
	t.Helper()
	d := New(context.Background(), hclog.NewNullLogger())
	t.Cleanup(d.Shutdown)
	return d
}

// alone is a driver with state files and without a containerd, and without what it does in
// the background. Its directory is a test's to spoil.
func alone(t *testing.T) (*Driver, environment) {
	t.Helper()
	dir := t.TempDir() // before the driver, so that it goes after it
	d := unconfigured(t)
	state, err := statedir.Open(dir, "boot")
	must.NoError(t, err)
	client, err := runtime.New(runtime.Config{Socket: filepath.Join(dir, "none.sock"), Namespace: testNamespace, Owner: dir})
	must.NoError(t, err)
	env := environment{settings: config.Settings{Config: config.Config{StateDir: dir, Namespace: testNamespace, CNIPath: "/nowhere"}}, runtime: client, state: state}
	d.use(env)
	d.leases.Open(state)
	return d, env
}

// known makes a task that a driver watches, without a container that runs.
func known(d *Driver, env environment, l gpu.Lease) *task {
	l.Container = "box"
	_, t := d.newTask(&drivers.TaskConfig{ID: "known", Name: "web"}, env.runtime.Unloaded(l.Container, "image", nil, nil), record.Record{Lease: l})
	return t
}

// calls are what Nomad asks of a driver about one task.
func calls(d *Driver, id string) map[string]func() error {
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	return map[string]func() error{
		"wait":    func() error { _, err := d.WaitTask(ctx, id); return err },
		"inspect": func() error { _, err := d.InspectTask(id); return err },
		"stats":   func() error { _, err := d.TaskStats(ctx, id, time.Hour); return err },
		"signal":  func() error { return d.SignalTask(id, "SIGINT") },
		"exec":    func() error { _, err := d.ExecTask(id, []string{"true"}, time.Second); return err },
		"stream":  func() error { _, err := d.ExecTaskStreaming(ctx, id, &drivers.ExecOptions{}); return err },
	}
}

// What Nomad asks of a task that the driver does not know, or of a driver that is not
// configured, is answered so: a nil error would be taken for work that was done.
func TestCallsThatCannotBeAnswered(t *testing.T) {
	d := unconfigured(t)
	for name, call := range calls(d, "none") {
		must.ErrorIs(t, call(), drivers.ErrTaskNotFound, must.Sprint(name))
	}
	cfg := &drivers.TaskConfig{ID: "none", Name: "web"}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = cfg
	host := &seatHost{driver: d, uuid: gpuA}
	_, startErr := d.findExisting(t.Context(), cfg)
	_, _, nomadsStartErr := d.StartTask(cfg)
	_, checkpointErr := host.Checkpoint(t.Context(), gpu.CheckpointRequest{})
	_, leaseErr := host.lease("lease")
	_, limitErr := host.MemoryLimit("lease")
	_, processesErr := host.Processes("lease")
	_, statusErr := selfOf{d, &task{}}.status()
	_, enterErr := d.enterTask(&task{})
	for name, err := range map[string]error{
		"stop": d.StopTask("none", 0, ""), "destroy": d.DestroyTask("none", true), "recover": d.RecoverTask(handle),
		"find": startErr, "start": nomadsStartErr, "record": d.recordTask(&runtime.Container{}, record.Record{}), "remove": d.remove(&runtime.Container{}),
		"remove host resources": d.removeHostResources("box"), "checkpoint": checkpointErr, "lease": leaseErr, "limit": limitErr,
		"set limit": host.SetMemoryLimit("lease", 1), "processes": processesErr, "save": host.Save(gpu.Seats{}), "status": statusErr, "enter": enterErr,
	} {
		must.ErrorIs(t, err, errDisabled, must.Sprint(name))
	}
	must.ErrorContains(t, d.RecoverTask(nil), "the handle is empty")
	must.ErrorContains(t, d.RecoverTask(&drivers.TaskHandle{}), "the handle is empty")
	handle.Version = handleVersion + 1
	must.ErrorContains(t, d.RecoverTask(handle), "its handle has version")
}

// A task that runs, and one whose start is under way, are not started a second time.
func TestATaskIsStartedOnce(t *testing.T) {
	d, env := alone(t)
	known(d, env, gpu.Lease{})
	_, _, err := d.StartTask(&drivers.TaskConfig{ID: "known"})
	must.ErrorContains(t, err, `task "known" is already started`)

	cfg := &drivers.TaskConfig{ID: "begun"}
	_, done, err := d.starts.begin(t.Context(), cfg)
	must.NoError(t, err)
	_, _, err = d.StartTask(cfg)
	must.ErrorContains(t, err, `task "begun" is being started already`)
	done()
}

// A configuration that is wrong changes nothing, and one that disables the driver leaves
// it without a containerd.
func TestConfigurationsThatDoNotConfigure(t *testing.T) {
	d := unconfigured(t)
	block := func(change func(*config.Config)) *base.Config {
		var c config.Config
		parse(t, config.Schema, ``, &c)
		change(&c)
		var data []byte
		must.NoError(t, base.MsgPackEncode(&data, c))
		return &base.Config{PluginConfig: data}
	}
	notADirectory := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(notADirectory, nil, 0o600))
	must.ErrorContains(t, d.SetConfig(&base.Config{PluginConfig: []byte("no message")}), "plugin config: decode: ")
	must.ErrorContains(t, d.SetConfig(block(func(c *config.Config) { c.StatsInterval = "soon" })), "plugin config: stats_interval")
	must.ErrorContains(t, d.SetConfig(block(func(c *config.Config) { c.StateDir = notADirectory })), "not a directory")
	_, err := d.configured()
	must.ErrorIs(t, err, errDisabled)
	must.NoError(t, d.SetConfig(block(func(c *config.Config) { c.Enabled, c.DisableLogs = false, true })))
	_, err = d.configured()
	must.ErrorIs(t, err, errDisabled)
	able, err := d.Capabilities()
	must.NoError(t, err)
	must.True(t, able.DisableLogCollection)
}

// What the driver keeps on the host for a container is told when it cannot be made, and
// when it cannot be removed: each directory of the driver's is spoiled in turn.
func TestHostResourcesThatCannotBeMade(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	for sub, make := range map[string]func(env environment) error{
		"shm":    func(env environment) error { _, err := sharedMemory(env.settings).Create("box", 1<<20); return err },
		"pipes":  func(env environment) error { _, err := pipes(env.settings).Create("box", "/nowhere"); return err },
		"stages": func(env environment) error { return (&startPlan{env: env}).setStage("box") },
		"self": func(env environment) error {
			_, err := newSelfDirs(env.settings).create("box", []string{"d"}, []string{"f"})
			return err
		},
		"tasks": func(env environment) error {
			return record.StoreIn(env.settings.StateDir).Write(record.Kept{Container: "box"})
		},
	} {
		t.Run(sub, func(t *testing.T) {
			d, env := alone(t)
			must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, sub), nil, 0o600))
			must.ErrorContains(t, make(env), "not a directory")
			// And below: where the container's own directory is to be.
			must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, sub)))
			must.NoError(t, os.MkdirAll(filepath.Join(env.settings.StateDir, sub), 0o700))
			must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, sub, "box"), nil, 0o600))
			must.ErrorContains(t, make(env), "not a directory")
			if sub == "self" {
				_, err := newSelfDirs(env.settings).create("box", nil, []string{"f"})
				must.ErrorContains(t, err, "not a directory")
			}
			must.NoError(t, os.Remove(filepath.Join(env.settings.StateDir, sub, "box")))
			must.NoError(t, d.removeHostResources("box"))
		})
	}
}

// A tmpfs that the kernel does not make leaves no directory, and is not taken for one.
func TestSharedMemoryThatTheKernelRefuses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	_, env := alone(t)
	m := sharedMemory(env.settings)
	_, err := m.Create("box", -1)
	must.ErrorContains(t, err, "mount shared memory on "+m.Of("box"))
	_, err = os.Stat(m.Of("box"))
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, os.MkdirAll(filepath.Join(m.Of("box"), "inner"), 0o700))
	must.ErrorContains(t, m.Remove(t.Context(), "box"), "remove shared memory: ")
	long := strings.Repeat("x", 300)
	must.ErrorContains(t, m.Remove(t.Context(), long), "remove shared memory: unmount ")
	pipes := pipes(env.settings)
	must.NoError(t, os.MkdirAll(filepath.Join(env.settings.StateDir, "pipes"), 0o700))
	must.ErrorContains(t, pipes.Remove(t.Context(), long), "file name too long")
}

// What goes away by itself is tried again, whoever wrapped it.
func TestProcessesThatDoNotEndAreTriedAgain(t *testing.T) {
	must.True(t, structs.IsRecoverable(recoverable(errors.Join(errors.New("left"), cgroups.ErrStillRuns))))
	must.False(t, structs.IsRecoverable(recoverable(errors.New("final"))))
}
