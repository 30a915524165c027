// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// What the driver keeps in files is read by its next process, and by the device plugin.

func openState(t *testing.T) (*statedir.Dir, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	dir, err := statedir.Open(path, "boot")
	must.NoError(t, err)
	return dir, path
}

func leaseOf(id, container string, milli int64, slices ...int) gpu.Lease {
	return gpu.Lease{ID: id, Container: container, Phase: gpu.PhaseRunning, StartedAt: time.Unix(1000, 0).UTC(),
		Holdings: []gpu.Holding{{UUID: gpuA, Slices: slices, Share: gpu.Share{MemoryMiB: 1024, GuaranteeMilli: milli}}}}
}

func TestNoticesAreToldOnce(t *testing.T) {
	dir, path := openState(t)
	var n notices
	one, two := topic{Container: "b", UUID: gpuA, Code: "x"}, topic{Container: "a", UUID: gpuB, Code: "y"}
	must.NoError(t, n.load(dir))
	must.NoError(t, n.save(dir))
	_, err := dir.Notices()
	must.ErrorIs(t, err, statedir.ErrNotFound, must.Sprint("there was nothing to save"))
	must.True(t, n.first(one))
	must.False(t, n.first(one))
	must.True(t, n.first(two))
	must.False(t, n.forget(topic{Container: "c"}))
	must.NoError(t, n.save(dir))

	var next notices
	must.NoError(t, next.load(dir))
	must.False(t, next.unsaved)
	must.False(t, next.first(one))
	must.Eq(t, []topic{two, one}, next.matching(func(topic) bool { return true }))
	must.True(t, next.forget(one))
	must.True(t, next.unsaved)
	must.True(t, next.first(one))
	must.True(t, next.forget(one))
	must.NoError(t, next.save(dir))
	must.NoError(t, next.load(dir), must.Sprint("it is read once"))
	must.True(t, next.first(one))

	// A task that has ended is forgotten; one that Nomad has not named yet is not.
	alive := leaseOf("l", "a", 0, 1)
	must.NoError(t, dir.WriteLease(alive))
	next.forgetEnded(nil, dir)
	must.Eq(t, []topic{two}, next.matching(func(topic) bool { return true }))
	next.first(one)
	next.forgetEnded([]string{"b"}, dir)
	must.Eq(t, []topic{two, one}, next.matching(func(topic) bool { return true }))
	alive.Phase = gpu.PhaseEnded
	must.NoError(t, dir.WriteLease(alive))
	next.forgetEnded([]string{"b"}, dir)
	must.Eq(t, []topic{one}, next.matching(func(topic) bool { return true }))

	// An unreadable file says so, once, and is replaced.
	must.NoError(t, os.WriteFile(filepath.Join(path, "notices.json"), []byte("{"), 0o600))
	var broken notices
	must.Error(t, broken.load(dir))
	must.NoError(t, broken.load(dir))
	must.True(t, broken.first(one))
	must.NoError(t, broken.save(dir))
	var after notices
	must.NoError(t, after.load(dir))
	must.False(t, after.first(one))
}

// TestTasksThatAreWatched: a task that comes is told, one that has ended is no namespace.
func TestTasksThatAreWatched(t *testing.T) {
	s := newTaskStore()
	_, err := s.get("id")
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	changed := s.changed()
	one := &task{cfg: &drivers.TaskConfig{ID: "id", AllocID: "a", Name: "web"}, done: make(chan struct{})}
	s.put(one)
	<-changed
	got, err := s.get("id")
	must.NoError(t, err)
	must.Eq(t, one, got)
	must.Len(t, 1, s.all())
	for _, miss := range [][2]string{{"a", "db"}, {"b", "web"}} {
		got, added := s.find(miss[0], miss[1])
		must.Nil(t, got)
		must.NotNil(t, added)
	}
	got, err = s.running(t.Context(), "a", "web")
	must.NoError(t, err)
	must.Eq(t, one, got)
	s.remove("id")
	must.SliceEmpty(t, s.all())
}

func TestWordsOfVolumes(t *testing.T) {
	for mode, want := range map[string]string{"": "rprivate", "private": "rprivate", "host-to-task": "rslave", "bidirectional": "rshared"} {
		is, err := propagationOf(mode)
		must.NoError(t, err)
		must.Eq(t, want, is)
	}
	_, err := propagationOf("shared")
	must.ErrorContains(t, err, `propagation "shared" is not one of private, host-to-task, bidirectional`)
	volume := func(path, mode string, readonly bool) *drivers.TaskConfig {
		return &drivers.TaskConfig{Mounts: []*drivers.MountConfig{{TaskPath: "/fine"}, {TaskPath: path, PropagationMode: mode, Readonly: readonly}}}
	}
	for says, cfg := range map[string]*drivers.TaskConfig{
		"volume_mount":         volume("/proc/x", "", false),
		`volume at "/v": prop`: volume("/v", "shared", false),
	} {
		must.ErrorContains(t, checkVolumes(cfg, taskconfig.Config{}), says)
	}
	must.Error(t, checkVolumes(volume("/v", "host-to-task", true), taskconfig.Config{}))
	first := volume("/v", "shared", false)
	first.Mounts = first.Mounts[1:]
	must.Error(t, checkVolumes(first, taskconfig.Config{}))
	for _, cfg := range []*drivers.TaskConfig{volume("/v", "host-to-task", false), volume("/v", "", true), volume("/v", "bidirectional", false), {}} {
		must.NoError(t, checkVolumes(cfg, taskconfig.Config{}))
	}
	of := ofAllocation("/a", "/b", true)
	for _, option := range []string{"nosuid", "nodev"} {
		must.SliceContains(t, of.Options, option)
	}
}

// TestWhichErrorsPass by themselves.
func TestWhichErrorsPass(t *testing.T) {
	for _, err := range []error{
		&spec.NotReadyError{UUID: gpuA, Reason: "ill"}, structs.NewRecoverableError(errors.New("x"), true), cgroups.ErrStillRuns, runtime.ErrOutOfMemory,
	} {
		must.True(t, structs.IsRecoverable(recoverable(err)), must.Sprint(err))
		must.True(t, structs.IsRecoverable(recoverable(errors.Join(errors.New("y"), err))), must.Sprint(err))
	}
	for _, err := range []error{errors.New("x"), structs.NewRecoverableError(errors.New("x"), false), rooted.ErrKind} {
		must.False(t, structs.IsRecoverable(recoverable(err)), must.Sprint(err))
	}
	must.NoError(t, recoverable(nil))
}
