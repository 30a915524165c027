// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// spoil puts a file where a directory of the driver's is to be.
func spoil(t *testing.T, env environment, name string) {
	t.Helper()
	path := filepath.Join(env.settings.StateDir, name)
	must.NoError(t, os.RemoveAll(path))
	must.NoError(t, os.WriteFile(path, nil, 0o600))
}

// Whatever fails when a task is recovered is told with its name, and it is not taken up in
// part: Nomad would believe that it is watched.
func TestRecoveriesThatFail(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(t *testing.T, env environment, fake *fakeContainerd)
		says  string
		calls []string
	}{
		"nothing":      {},
		"its sessions": {calls: []string{"Tasks/ListPids"}}, // they may run on
		"the search":   {calls: []string{"Containers/List"}, says: "Containers/List"},
		"its process":  {calls: []string{"Tasks/Get"}, says: "Tasks/Get"},
		"no container": {spoil: func(_ *testing.T, _ environment, fake *fakeContainerd) { delete(fake.containers, "box") }, says: drivers.ErrTaskNotFound.Error()},
		"no process":   {spoil: func(_ *testing.T, _ environment, fake *fakeContainerd) { fake.end("box", 0, true) }, says: "not found"},
		"its record": {spoil: func(_ *testing.T, _ environment, fake *fakeContainerd) {
			fake.add("box", fake.containers["box"].Labels, []byte("{"))
		}, says: "read record of container box"},
		"its lease":     {spoil: func(t *testing.T, env environment, _ *fakeContainerd) { spoil(t, env, "leases") }, says: "leases"},
		"our own notes": {spoil: func(t *testing.T, env environment, _ *fakeContainerd) { spoil(t, env, "tasks") }, says: "write record of container box"},
	} {
		t.Run(name, func(t *testing.T) {
			d, env, fake, cfg := besideFake(t)
			said := hear(d)
			if row.spoil != nil {
				row.spoil(t, env, fake)
			}
			fake.fail(codes.Internal, row.calls...)
			err := d.RecoverTask(handleOf(cfg))
			_, unknown := d.tasks.get(cfg.ID)
			if row.says != "" {
				must.ErrorContains(t, err, `recover task "task": `)
				must.ErrorContains(t, err, row.says)
				must.ErrorIs(t, unknown, drivers.ErrTaskNotFound)
				return
			}
			must.NoError(t, err)
			must.NoError(t, unknown)
			must.Eq(t, len(row.calls) > 0, strings.Contains(said(), "exec sessions of an earlier process may still run"))
		})
	}
}

// A task whose process ended while no driver ran ends with its exit code: containerd's or,
// when that has forgotten it, the one that was noted with the container.
func TestRecoveredTasksThatHaveEnded(t *testing.T) {
	for name, forgotten := range map[string]bool{"known": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			d, env, fake, cfg := besideFake(t)
			exit := runtime.Exit{Code: 7, At: time.Now()}
			if forgotten {
				must.NoError(t, env.runtime.Unloaded("box", "", nil, nil).SetLabels(t.Context(), record.ExitLabels(exit)))
			}
			fake.end("box", 7, forgotten)
			must.NoError(t, d.RecoverTask(handleOf(cfg)))
			result := resultOf(t, d, cfg.ID)
			must.Eq(t, 7, result.ExitCode)
			must.NoError(t, result.Err)
			lease, err := env.state.Lease(boxLease)
			must.NoError(t, err)
			must.False(t, lease.Live())
		})
	}
}

// resultOf waits for the result of a task.
func resultOf(t *testing.T, d *Driver, id string) *drivers.ExitResult {
	t.Helper()
	results, err := d.WaitTask(t.Context(), id)
	must.NoError(t, err)
	return <-results
}

// A watch that finds no process any more tells the exit code that another has noted.
func TestAnExitThatWasNotedByAnother(t *testing.T) {
	d, env, fake, cfg := besideFake(t)
	c, err := env.runtime.Load(t.Context(), "box")
	must.NoError(t, err)
	must.NoError(t, c.SetLabels(t.Context(), record.ExitLabels(runtime.Exit{Code: 9, At: time.Now()})))
	fake.end("box", 0, true)
	d.watch(cfg, c, record.Record{})
	must.Eq(t, 9, resultOf(t, d, cfg.ID).ExitCode)
}

// A task that this process does not know is stopped all the same; what cannot be asked or
// signalled is told, and not taken for a task that has ended.
func TestStopsThatFail(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(fake *fakeContainerd)
		says  string
		calls []string
	}{
		"nothing":      {},
		"the search":   {calls: []string{"Containers/List"}, says: "Containers/List"},
		"its process":  {calls: []string{"Tasks/Get"}, says: "Tasks/Get"},
		"the signal":   {calls: []string{"Tasks/Kill"}, says: "Tasks/Kill"},
		"no process":   {spoil: func(fake *fakeContainerd) { fake.end("box", 0, true) }, says: drivers.ErrTaskNotFound.Error()},
		"no container": {spoil: func(fake *fakeContainerd) { delete(fake.containers, "box") }, says: drivers.ErrTaskNotFound.Error()},
		"its record":   {spoil: func(fake *fakeContainerd) { fake.add("box", fake.containers["box"].Labels, []byte("{")) }, says: "read record of container box"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _, fake, cfg := besideFake(t)
			if row.spoil != nil {
				row.spoil(fake)
			}
			fake.fail(codes.Internal, row.calls...)
			err := d.StopTask(cfg.ID, time.Hour, "SIGTERM")
			if row.says == "" {
				must.NoError(t, err)
				must.Eq(t, 128+int(syscall.SIGTERM), resultOf(t, d, cfg.ID).ExitCode)
				return
			}
			must.ErrorContains(t, err, row.says)
			if one, err := d.tasks.get(cfg.ID); err == nil {
				must.False(t, one.exited())
			}
		})
	}
	t.Run("away", func(t *testing.T) {
		d, _, fake, cfg := besideFake(t)
		fake.fail(codes.Unavailable, "Tasks/Get")
		one, err := d.adoptUnknown(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, "box", one.container.ID)
		_, err = d.tasks.get(cfg.ID)
		must.NoError(t, err, must.Sprint("how it is comes out when containerd is back"))
	})
}

// What cannot be removed of a task keeps its lease, is told, is noted for the next process
// of the driver, and is removed when that can be done.
func TestRemovalsThatFail(t *testing.T) {
	for name, row := range map[string]struct {
		spoil, heal func(t *testing.T, env environment)
		calls       []string
		says        string
	}{
		"its end":       {calls: []string{"Tasks/Delete", "Tasks/Get"}, says: "Tasks/Get"},
		"its container": {calls: []string{"Containers/Delete"}, says: "Containers/Delete"},
		"what is on the host": {
			spoil: func(t *testing.T, env environment) {
				must.NoError(t, os.MkdirAll(filepath.Join(env.settings.StateDir, "shm", "box", "inner"), 0o700))
			},
			heal: func(t *testing.T, env environment) {
				must.NoError(t, os.RemoveAll(filepath.Join(env.settings.StateDir, "shm", "box", "inner")))
			}, says: "remove shared memory: ",
		},
	} {
		for how, watched := range map[string]bool{"watched": true, "unknown": false} {
			t.Run(name+" "+how, func(t *testing.T) {
				d, env, fake, cfg := besideFake(t)
				if watched {
					must.NoError(t, d.RecoverTask(handleOf(cfg)))
					must.NoError(t, d.StopTask(cfg.ID, time.Hour, "SIGKILL"))
				}
				if row.spoil != nil {
					row.spoil(t, env)
				}
				fake.fail(codes.Internal, row.calls...)
				must.ErrorContains(t, d.DestroyTask(cfg.ID, true), row.says)
				_, err := d.tasks.get(cfg.ID)
				must.ErrorIs(t, err, drivers.ErrTaskNotFound)
				if row.heal == nil {
					noted, err := record.StoreIn(env.settings.StateDir).OfTask(cfg.ID)
					must.NoError(t, err)
					must.Len(t, 1, noted)
					must.True(t, noted[0].Destroyed)
				}
				lease, err := env.state.Lease(boxLease)
				must.NoError(t, err)
				must.Eq(t, !watched, lease.Live())
				if row.heal != nil {
					row.heal(t, env)
				}
				fake.fail(codes.OK)
				eventually(t, "the container is removed", func() bool {
					lease, err := env.state.Lease(boxLease)
					return err == nil && !lease.Live() && len(fake.holds()) == 0
				})
			})
		}
	}
}

// A container without a readable record is removed, and its holdings are not known.
func TestRemovalsWithoutARecord(t *testing.T) {
	d, env, fake, cfg := besideFake(t)
	said := hear(d)
	fake.add("box", fake.containers["box"].Labels, []byte("{"))
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	must.SliceEmpty(t, fake.holds())
	must.StrContains(t, said(), "container had no readable record: container=box")
	lease, err := env.state.Lease(boxLease)
	must.NoError(t, err)
	must.True(t, lease.Live())

	// A removal that only this process knows of is told to the operator.
	must.NoError(t, os.MkdirAll(filepath.Join(env.settings.StateDir, "tasks", "box", "task.json"), 0o700))
	d.cancel()
	d.removeLater(env.runtime.Unloaded("box", "", nil, nil), errors.New("why"))
	must.StrContains(t, said(), "only this process knows that a container must be removed: container=box")
	// The next process says which records it cannot read.
	d.removeDestroyed(env)
	must.StrContains(t, said(), "not all records of tasks can be read: ")
	must.ErrorIs(t, d.DestroyTask(cfg.ID, true), drivers.ErrTaskNotFound)
}

// An image whose use cannot be noted keeps no task from being removed.
func TestTheUseOfAnImageThatIsNotNoted(t *testing.T) {
	d, _, fake, cfg := besideFake(t)
	said := hear(d)
	fake.containers["box"].Labels[record.LabelManaged] = "true"
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	must.StrContains(t, said(), "use of an image is not recorded: image=image")
}

// What cannot be tidied up is told with its name, and the rest is.
func TestReapsThatFail(t *testing.T) {
	later := time.Now().Add(time.Hour)
	reap := map[string]func(d *Driver, env environment) error{
		"containers": func(d *Driver, env environment) error { return d.reapContainers(d.ctx, env.runtime, later) },
		"leases":     func(d *Driver, env environment) error { return d.reapLeases(d.ctx, env.runtime, later) },
		"resources": func(d *Driver, env environment) error {
			return d.reapHostResources(d.ctx, env.runtime, env.settings, later)
		},
	}
	for name, row := range map[string]struct {
		what, call, says string
	}{
		"which there are":    {"containers", "Containers/List", "Containers/List"},
		"what is not there":  {"containers", "Tasks/Get", "Tasks/Get"},
		"whether it is here": {"leases", "Containers/Get", "lease " + boxLease + ": "},
		"whose it is":        {"resources", "Containers/Get", "look for container box: "},
	} {
		t.Run(name, func(t *testing.T) {
			d, env, fake, _ := besideFake(t)
			fake.fail(codes.Internal, row.call, "Tasks/Delete")
			err := reap[row.what](d, env)
			must.ErrorContains(t, err, row.says)
			must.ErrorContains(t, err, row.call)
			must.Eq(t, []string{"box"}, fake.holds())
			lease, err := env.state.Lease(boxLease)
			must.NoError(t, err)
			must.True(t, lease.Live())
			fake.fail(codes.OK)
			must.NoError(t, reap["containers"](d, env))
			must.SliceEmpty(t, fake.holds())
			must.NoError(t, reap["leases"](d, env))
			must.NoError(t, reap["resources"](d, env))
		})
	}
	// A lease that cannot be ended is named.
	d, env, fake, _ := besideFake(t)
	said := hear(d)
	delete(fake.containers, "box")
	must.NoError(t, reap["leases"](d, env))
	must.StrContains(t, said(), "ending a lease whose container is gone: lease="+boxLease)
	lease, err := env.state.Lease(boxLease)
	must.NoError(t, err)
	must.False(t, lease.Live())
}

// A start takes up what an earlier attempt left, or says why it cannot: a second container
// of the task would run beside it.
func TestStartsBesideAnEarlierOne(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(fake *fakeContainerd)
		says  string
		calls []string
	}{
		"nothing":     {},
		"the search":  {calls: []string{"Containers/List"}, says: "Containers/List"},
		"its process": {calls: []string{"Tasks/Get"}, says: "Tasks/Get"},
		"its record":  {spoil: func(fake *fakeContainerd) { fake.add("box", fake.containers["box"].Labels, []byte("{")) }, says: "read record of container box"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _, fake, cfg := besideFake(t)
			if row.spoil != nil {
				row.spoil(fake)
			}
			fake.fail(codes.Internal, row.calls...)
			handle, _, err := d.StartTask(cfg)
			must.Eq(t, []string{"box"}, fake.holds())
			if row.says == "" {
				must.NoError(t, err)
				must.Eq(t, cfg, handle.Config)
				return
			}
			must.ErrorContains(t, err, row.says)
			_, err = d.tasks.get(cfg.ID)
			must.ErrorIs(t, err, drivers.ErrTaskNotFound)
		})
	}
	t.Run("that cannot be removed", func(t *testing.T) {
		d, env, fake, cfg := besideFake(t)
		said := hear(d)
		existing, err := d.findExisting(t.Context(), cfg)
		must.NoError(t, err)
		must.Len(t, 1, existing)
		fake.fail(codes.Internal, "Tasks/Delete", "Tasks/Get")
		s := &start{driver: d, cfg: cfg, existing: existing, plan: &startPlan{env: env}}
		err = s.removeExisting(t.Context())
		must.ErrorContains(t, err, "Tasks/Get")
		must.True(t, structs.IsRecoverable(err))
		must.StrContains(t, said(), "removing an earlier container of the task: task_id=task container=box")
		lease, err := env.state.Lease(boxLease)
		must.NoError(t, err)
		must.True(t, lease.Live())
		fake.fail(codes.OK)
		must.NoError(t, s.removeExisting(t.Context()))
		must.SliceEmpty(t, fake.holds())
	})
	t.Run("whose own cannot be removed", func(t *testing.T) {
		d, env, fake, cfg := besideFake(t)
		must.NoError(t, (&start{driver: d, cfg: cfg}).removeContainer())
		c, err := env.runtime.Load(t.Context(), "box")
		must.NoError(t, err)
		fake.fail(codes.Internal, "Tasks/Delete", "Tasks/Get")
		must.ErrorContains(t, (&start{driver: d, cfg: cfg, container: c}).removeContainer(), "Tasks/Get")
		must.Eq(t, []string{"box"}, fake.holds())
		fake.fail(codes.OK)
		eventually(t, "the container and its lease are gone", func() bool {
			lease, err := env.state.Lease(boxLease)
			return err == nil && !lease.Live() && len(fake.holds()) == 0
		})
	})
	t.Run("that waits for room", func(t *testing.T) {
		d, _, _, cfg := besideFake(t)
		d.starts.room.SetLimit(1)
		_, err := d.starts.room.Take(t.Context(), "", "first")
		must.NoError(t, err)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = d.admitted(over, cfg)
		must.ErrorIs(t, err, context.Canceled)
	})
	t.Run("whose lease cannot be written", func(t *testing.T) {
		d, env, _, cfg := besideFake(t)
		spoil(t, env, "leases")
		s := &start{driver: d, cfg: cfg, plan: &startPlan{env: env, record: record.Record{Lease: gpu.Lease{ID: boxLease, Container: "box", Holdings: []gpu.Holding{{UUID: gpuA}}}}}}
		must.Error(t, s.watchTask(t.Context()))
		must.Nil(t, s.task)
		must.NoError(t, s.forgetTask())
	})
}
