// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// sharedMount is a directory of the host on a mount of its own, as those of a
// machine with systemd are.
func sharedMount(t *testing.T, dir string) string {
	t.Helper()
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	must.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	return dir
}

func volumes(mounts ...*drivers.MountConfig) func(*drivers.TaskConfig) {
	return func(cfg *drivers.TaskConfig) { cfg.Mounts = mounts }
}

// A CSI node plugin mounts volumes where the host, and with it other tasks, must
// find them; the mounts are those that Nomad gives it.
func TestCSINodePluginMountsVolumesForTheHost(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.AllowPrivileged = true })
		dir := sharedMount(t, filepath.Join(e.dir, "csi"))
		config := defaultTaskConfig("sh", "-c", "mount -t tmpfs volume /csi/v && touch /csi/v/from-plugin; while [ ! -e /csi/h/from-host ]; do sleep 0.02; done; umount /csi/v")
		config.Privileged = true
		for _, name := range []string{"v", "h"} {
			must.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		}
		cfg := e.quietTask(config, volumes(
			&drivers.MountConfig{TaskPath: "/csi", HostPath: dir, PropagationMode: "bidirectional"},
			&drivers.MountConfig{TaskPath: "/dev", HostPath: "/dev"},
		))
		cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
		e.start(cfg)
		eventually(t, "the host sees what the plugin mounted", func() bool { return fileExists(filepath.Join(dir, "v", "from-plugin")) })

		host := filepath.Join(dir, "h")
		must.NoError(t, unix.Mount("tmpfs", host, "tmpfs", 0, ""))
		defer func() { must.NoError(t, unix.Unmount(host, unix.MNT_DETACH)) }()
		must.NoError(t, os.WriteFile(filepath.Join(host, "from-host"), nil, 0o644))
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode, must.Sprint("the plugin does not see what the host mounts, or cannot unmount"))
		mounted, err := mountinfo.Mounted(filepath.Join(dir, "v"))
		must.NoError(t, err)
		must.False(t, mounted, must.Sprint("the plugin unmounted it, and the host still has it"))
	})
}

// One that only looks sees the host's mounts, and its own stay its own.
func TestPropagationFromTheHost(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.AllowPrivileged = true })
		dir := sharedMount(t, filepath.Join(e.dir, "looks"))
		for _, name := range []string{"v", "h"} {
			must.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		}
		config := defaultTaskConfig("sh", "-c", "mount -t tmpfs own /vol/v; touch /vol/v/own /vol/ready; while [ ! -e /vol/h/from-host ]; do sleep 0.02; done")
		config.Privileged = true
		cfg := e.quietTask(config, volumes(&drivers.MountConfig{TaskPath: "/vol", HostPath: dir, PropagationMode: "host-to-task"}))
		cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
		e.start(cfg)
		eventually(t, "the task is ready", func() bool { return fileExists(filepath.Join(dir, "ready")) })
		must.False(t, fileExists(filepath.Join(dir, "v", "own")), must.Sprint("the task's mount reached the host"))
		host := filepath.Join(dir, "h")
		must.NoError(t, unix.Mount("tmpfs", host, "tmpfs", 0, ""))
		defer func() { must.NoError(t, unix.Unmount(host, unix.MNT_DETACH)) }()
		must.NoError(t, os.WriteFile(filepath.Join(host, "from-host"), nil, 0o644))
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
	})
}

// Where nothing could arrive, the task is told instead of left waiting for it.
func TestPropagationNeedsASharedMount(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		dir := sharedMount(t, filepath.Join(e.dir, "private"))
		must.NoError(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
		for _, mode := range []string{"bidirectional", "host-to-task"} {
			_, _, err := e.harness.StartTask(e.quietTask(defaultTaskConfig("true"), volumes(&drivers.MountConfig{TaskPath: "/x", HostPath: dir, PropagationMode: mode})))
			must.ErrorContains(t, err, "mount --make-rshared "+dir, must.Sprint(mode))
		}
		config := defaultTaskConfig("true")
		config.Mounts = []taskconfig.MountConfig{{Type: "bind", Source: dir, Target: "/x", Propagation: "rslave"}}
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "mount --make-rshared "+dir)
		must.Eq(t, nil, e.leftovers())
	})
}
