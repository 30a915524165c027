// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Options that make a mount something else than its type says, or let it reach the
// host, are refused.
func TestHostileMountOptions(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		dir := sharedMount(t, filepath.Join(e.dir, "shared"))
		for _, row := range []struct {
			mount taskconfig.MountConfig
			says  string
		}{
			{taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Options: []string{"bind"}}, `option "bind" is not one of a tmpfs's`},
			{taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Options: []string{"rbind", "ro"}}, `option "rbind" is not one of a tmpfs's`},
			{taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Options: []string{"rshared"}}, `option "rshared" is not one of a tmpfs's`},
			{taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Propagation: "rslave"}, "propagation is for bind mounts"},
			{taskconfig.MountConfig{Source: "local", Target: "/x", Options: []string{"size=1G"}}, `option "size=1G" is not one of a bind mount's`},
			{taskconfig.MountConfig{Source: "local", Target: "/x", Options: []string{"remount"}}, `option "remount" is not one of a bind mount's`},
			{taskconfig.MountConfig{Source: dir, Target: "/x", Propagation: "rshared"}, "only a privileged task"},
			{taskconfig.MountConfig{Source: dir, Target: "/x", Options: []string{"shared"}}, "only a privileged task"},
			{taskconfig.MountConfig{Source: dir, Target: "/x", ReadOnly: true, Propagation: "rslave"}, "would not be read-only"},
			{taskconfig.MountConfig{Source: dir, Target: "/x", Options: []string{"slave", "ro"}}, "would not be read-only"},
		} {
			e.refused(e.quietTask(mounting(row.mount, "true")), row.says)
		}
		for _, volume := range []string{dir + ":/x:rshared", dir + ":/x:ro,rslave"} {
			config := defaultTaskConfig("true")
			config.Volumes = []string{volume}
			e.refused(e.quietTask(config), "mounts: target \"/x\": propagation")
		}
		e.refused(e.quietTask(defaultTaskConfig("true"), volumes(&drivers.MountConfig{
			TaskPath: "/x", HostPath: dir, Readonly: true, PropagationMode: "host-to-task",
		})), "would not be read-only")
		must.Eq(t, nil, e.leftovers())
	})
}

// Read-only is what lies below a source too, whatever is mounted there.
func TestReadOnlyReachesWhatIsMountedBelow(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		dir := sharedMount(t, filepath.Join(e.dir, "volume"))
		disk := filepath.Join(dir, "disk")
		sharedMount(t, disk)
		must.NoError(t, os.Chmod(disk, 0o777))
		config := defaultTaskConfig("sh", "-c", "for i in 1 2 3 4; do touch /v$i/disk/evil /v$i/evil; ls -d /v$i/disk; done")
		config.Mounts = []taskconfig.MountConfig{
			{Type: "bind", Source: dir, Target: "/v1", ReadOnly: true},
			{Type: "volume", Source: dir, Target: "/v2", Options: []string{"ro", "nosuid"}},
		}
		config.Volumes = []string{dir + ":/v3:ro"}
		out, _ := e.run(config, volumes(&drivers.MountConfig{TaskPath: "/v4", HostPath: dir, Readonly: true}))
		must.Eq(t, []string{"/v1/disk", "/v2/disk", "/v3/disk", "/v4/disk"}, lines(out))
		for _, evil := range []string{filepath.Join(disk, "evil"), filepath.Join(dir, "evil")} {
			must.False(t, fileExists(evil), must.Sprintf("a read-only mount was written: %s", evil))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// What the host restricts stays restricted, whatever options an author writes: a
// runtime that changes one option of a mount sets all of them anew.
func TestMountsKeepTheHostsRestrictions(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		dir := sharedMount(t, filepath.Join(e.dir, "restricted"))
		must.NoError(t, os.Chmod(dir, 0o777))
		must.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
		config := defaultTaskConfig("sh", "-c", "grep ' /v[0-9] ' /proc/self/mountinfo; touch /v1/evil /v2/evil /v3/evil; true")
		config.Mounts = []taskconfig.MountConfig{
			{Source: dir, Target: "/v1", Options: []string{"noatime"}},
			{Source: dir, Target: "/v2", Options: []string{"rw", "suid", "dev", "exec", "sync"}},
		}
		out, _ := e.run(config, volumes(&drivers.MountConfig{TaskPath: "/v3", HostPath: dir, Readonly: true}))
		must.Len(t, 3, lines(out), must.Sprint(out))
		for _, line := range lines(out) {
			have := strings.Split(strings.Fields(line)[5], ",")
			for _, option := range []string{"ro", "nosuid", "nodev", "noexec"} {
				must.SliceContains(t, have, option, must.Sprint(line))
			}
		}
		must.False(t, fileExists(filepath.Join(dir, "evil")))
	})
}

// No mount lies in those of the GPU share, also where a link of the image leads one
// there: the pipes are the daemon's, and the cache may be others' too.
func TestHostileLinkIntoTheShare(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for name, links := range map[string]map[string]string{
			"directly":     {"x": "/run/nomad-gpu/mps/pipe"},
			"in two steps": {"x": "/y/mps/pipe", "y": "/run/nomad-gpu"},
		} {
			for _, m := range []taskconfig.MountConfig{{Type: "tmpfs", Target: "/x/inner"}, {Source: "local", Target: "/x/control"}} {
				config := mounting(m, "true")
				config.Image = "local/image.tar"
				cfg := e.quietTask(config, reserve(gpuA, 0))
				must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), linked(t, links), 0o644), must.Sprint(name))
				e.refused(cfg, "belongs to the task's GPU share")
			}
		}
		must.Eq(t, nil, e.leftovers())
	})
}
