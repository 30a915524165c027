// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// linked is the test image with a link.
func linked(t *testing.T, links map[string]string) []byte {
	t.Helper()
	var entries []tar.Header
	for name, target := range links {
		entries = append(entries, link(name, target))
	}
	return hostileImage{entries: entries}.archive(t, "")
}

// An image has a link where a mount is to lie. With runc 1.1.5 a /dev of the
// task's own made the runtime write a container's output to a file of the host's
// /proc, and newer ones mount there as well.
func TestHostileTargets(t *testing.T) {
	tmpfs := func(target string) taskconfig.MountConfig {
		return taskconfig.MountConfig{Type: "tmpfs", Target: target}
	}
	local := func(target string) taskconfig.MountConfig {
		return taskconfig.MountConfig{Source: "local", Target: target}
	}
	const kernels = "which is the runtime's"
	for name, attack := range map[string]struct {
		links map[string]string
		mount taskconfig.MountConfig
		says  string
	}{
		"link to dev":                    {map[string]string{"x": "/dev"}, local("/x"), kernels},
		"link to dev, tmpfs":             {map[string]string{"x": "/dev"}, tmpfs("/x"), kernels},
		"link to dev that climbs":        {map[string]string{"x": "../../../dev"}, local("/x"), kernels},
		"link to dev in two steps":       {map[string]string{"x": "/y", "y": "dev"}, local("/x"), kernels},
		"link above the target":          {map[string]string{"x": "/"}, local("/x/dev"), kernels},
		"link to a file of dev":          {map[string]string{"x": "/dev/null"}, local("/x"), kernels},
		"link to terminals":              {map[string]string{"x": "/dev/pts"}, tmpfs("/x"), kernels},
		"link to shm":                    {map[string]string{"x": "/dev/shm"}, tmpfs("/x"), kernels},
		"link to proc":                   {map[string]string{"x": "/proc"}, local("/x"), kernels},
		"link into proc":                 {map[string]string{"x": "/proc/self/attr"}, local("/x/exec"), kernels},
		"link to a process":              {map[string]string{"x": "/proc/self/fd"}, local("/x/0"), kernels},
		"link to sys":                    {map[string]string{"x": "/sys"}, tmpfs("/x"), kernels},
		"link to control groups":         {map[string]string{"x": "/sys/fs/cgroup"}, tmpfs("/x"), kernels},
		"link to the root":               {map[string]string{"x": "/"}, tmpfs("/x"), "root directory"},
		"link to local":                  {map[string]string{"x": "/local"}, tmpfs("/x"), `would cover "/local"`},
		"link to secrets":                {map[string]string{"x": "/secrets"}, tmpfs("/x"), `would cover "/secrets"`},
		"link to logs":                   {map[string]string{"x": "/alloc"}, tmpfs("/x/logs"), `would cover "/alloc/logs"`},
		"link above hosts":               {map[string]string{"x": "/etc"}, tmpfs("/x"), `would cover "/etc/`},
		"link to hosts":                  {map[string]string{"x": "/etc/hosts"}, local("/x"), `would cover "/etc/hosts"`},
		"dev is a link":                  {map[string]string{"dev": "/tmp"}, tmpfs("/x"), "/dev is a symbolic link"},
		"sys is a link":                  {map[string]string{"sys": "/tmp"}, tmpfs("/x"), "/sys is a symbolic link"},
		"proc is a link":                 {map[string]string{"proc": "/local"}, tmpfs("/x"), "/proc is a symbolic link"},
		"alloc is a link to dev":         {map[string]string{"alloc": "/dev"}, tmpfs("/x"), kernels},
		"secrets are a link into dev":    {map[string]string{"secrets": "/dev/fd"}, tmpfs("/x"), kernels},
		"local is a link":                {map[string]string{"local": "/x"}, tmpfs("/x"), `would cover "/local"`},
		"below dev":                      {nil, local("/dev/pts"), "is the runtime's"},
		"a device that the runtime uses": {nil, local("/dev/null"), "is the runtime's"},
		"below proc":                     {nil, tmpfs("/proc/sys"), "is the runtime's"},
		"below sys":                      {nil, tmpfs("/sys/fs/cgroup"), "is the runtime's"},
	} {
		t.Run(name, func(t *testing.T) {
			withContainerd(t, func(t *testing.T, e *env) {
				config := mounting(attack.mount, "true")
				config.Image = "local/image.tar"
				cfg := e.quietTask(config)
				must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), linked(t, attack.links), 0o644))
				e.refused(cfg, attack.says)
				must.Eq(t, nil, e.leftovers())
			})
		})
	}
}

// A mount in a directory that the task fills lies in that directory, whatever
// links it holds; and mounts in mounts work.
func TestMountsInMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		config := defaultTaskConfig("sh", "-c", "cat /local/dir/inner/file /local/one; touch /local/dir/ro/x || echo read-only; stat -f -c %T /local/dir/memory")
		config.Mounts = []taskconfig.MountConfig{
			{Type: "tmpfs", Target: "/local/x/y"},
			{Source: "local/source", Target: "/local/dir"},
			{Source: "local/source/below", Target: "/local/dir/inner"},
			{Source: "local/source", Target: "/local/dir/ro", ReadOnly: true},
			{Type: "tmpfs", Target: "/local/dir/memory"},
			{Source: "local/source/below/file", Target: "/local/one"},
			{Source: "local/source/below", Target: "/deep", Options: []string{"bind"}},
			{Type: "tmpfs", Target: "/deep/tmpfs"},
		}
		cfg := e.quietTask(config)
		local := cfg.TaskDir().LocalDir
		must.NoError(t, os.MkdirAll(filepath.Join(local, "source", "below"), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(local, "source", "below", "file"), []byte("inner\n"), 0o644))
		must.NoError(t, os.Symlink("/source/below", filepath.Join(local, "x")))
		out, result := e.runPrepared(cfg)
		must.Eq(t, 0, result.ExitCode, must.Sprint(out))
		must.True(t, fileExists(filepath.Join(local, "source", "below", "y")))
		must.StrContains(t, out, "inner\ninner\nread-only\n")
		must.StrContains(t, out, "tmpfs\n")
		// A link that leads nowhere in local.
		must.NoError(t, os.Remove(filepath.Join(local, "x")))
		must.NoError(t, os.Symlink(host.dir, filepath.Join(local, "x")))
		e.refused(cfg, "make mount point")
		host.unharmed(out)
		must.Eq(t, nil, e.leftovers())
	})
}

// A task, or an artifact, leaves a link where a task is to work: the runtime would follow
// it to descriptors of its own.
func TestHostileWorkingDirectories(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for name, row := range map[string]struct{ link, target, cwd, says string }{
			"in local":             {"wd", "/proc/self/fd/7", "/local/wd", `"/local/wd" is "/proc/self/fd/7" in this container`},
			"above it":             {"wd", "/dev", "/local/wd/fd/7", `"/local/wd/fd/7" is "/dev/fd/7" in this container`},
			"in two steps":         {"wd", "../alloc/wd/fd/7", "/local/wd", `"/local/wd" is "/dev/fd/7" in this container`},
			"that stays in local":  {"wd", "dir", "/local/wd/sub", ""},
			"that stays, absolute": {"wd", "/local/dir", "/local/wd/sub", ""},
		} {
			config := defaultTaskConfig("pwd")
			config.Cwd = row.cwd
			cfg := e.quietTask(config)
			must.NoError(t, os.MkdirAll(filepath.Join(cfg.TaskDir().LocalDir, "dir", "sub"), 0o755))
			must.NoError(t, os.Symlink(row.target, filepath.Join(cfg.TaskDir().LocalDir, row.link)))
			must.NoError(t, os.Symlink("/dev", filepath.Join(cfg.TaskDir().SharedAllocDir, "wd")))
			if row.says != "" {
				e.refused(cfg, row.says)
				continue
			}
			out, result := e.runPrepared(cfg)
			must.Eq(t, 0, result.ExitCode, must.Sprint(name))
			must.Eq(t, "/local/dir/sub\n", out, must.Sprint(name))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// A mount point is made on the host, by root: not where the task may only read.
func TestReadOnlyMountsGetNoMountPoints(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		volume := filepath.Join(e.dir, "volume")
		must.NoError(t, os.MkdirAll(filepath.Join(volume, "there"), 0o755))
		below := func(targets ...string) *drivers.TaskConfig {
			config := defaultTaskConfig("sh", "-c", "touch /vol/there/in && touch /vol/x || echo read-only")
			for _, target := range targets {
				config.Mounts = append(config.Mounts, taskconfig.MountConfig{Type: "tmpfs", Target: target})
			}
			return e.quietTask(config, func(cfg *drivers.TaskConfig) {
				cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/vol", Readonly: true}}
			})
		}
		e.refused(below("/vol/made/by/task"), "the outer mount is read-only")
		e.refused(below("/alloc/logs/web.stdout.99"), "the outer mount is read-only")
		out, result := e.runPrepared(below("/vol/there"))
		must.Eq(t, 0, result.ExitCode, must.Sprint(out))
		must.StrContains(t, out, "read-only")
		entries, err := os.ReadDir(volume)
		must.NoError(t, err)
		must.Len(t, 1, entries, must.Sprint("the task made something on the volume"))
	})
}

// What Nomad mounts where the author says is held to the rules for mounts.
func TestHostileVolumes(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		volume := filepath.Join(e.dir, "volume")
		must.NoError(t, os.Mkdir(volume, 0o777))
		for target, says := range map[string]string{
			"/dev": "is the runtime's", "/dev/": "is the runtime's", "/proc/sys": "is the runtime's", "/sys/fs/cgroup": "is the runtime's",
			"/": "not an absolute", "": "not an absolute", "relative": "not an absolute", "/a/../..": "not an absolute",
			"/local": `would cover "/local"`, "/secrets/": `would cover "/secrets"`, "/alloc/logs": `would cover "/alloc/logs"`, "/etc": "would cover",
		} {
			e.refused(e.quietTask(defaultTaskConfig("true"), func(cfg *drivers.TaskConfig) {
				cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: target}}
			}), says)
		}
		out, _ := e.run(defaultTaskConfig("sh", "-c", "touch /local/data/x /alloc/data/v/y && ls /vol"), func(cfg *drivers.TaskConfig) {
			cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/local/data"}, {HostPath: volume, TaskPath: "/alloc/data/v"}, {HostPath: volume, TaskPath: "/vol/", Readonly: true}}
		})
		must.Eq(t, []string{"x", "y"}, lines(out))
		must.Eq(t, nil, e.leftovers())
	})
}

// Images whose links point at the driver's mounts run, and are contained.
func TestImagesWithLinksForOurMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("")
		config.Image, config.Entrypoint = "local/image.tar", []string{"sh", "-c", "cat /etc/hosts /etc/resolv.conf && touch /data/x && ls /data /local"}
		config.Mounts = []taskconfig.MountConfig{{Source: "local/data", Target: "/data"}}
		cfg := e.quietTask(config, func(cfg *drivers.TaskConfig) {
			cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.77"}}
		})
		// As systemd-resolved, and images of Alpine, have them.
		for i, resolver := range []string{"../run/systemd/resolve/stub-resolv.conf", "/local/resolver"} {
			cfg := cfg.Copy()
			cfg.ID += itoa(i)
			image := linked(t, map[string]string{"etc/resolv.conf": resolver, "etc/hosts": "/local/hosts", "data": "/srv/data"})
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), image, 0o644))
			must.NoError(t, os.MkdirAll(filepath.Join(cfg.TaskDir().LocalDir, "data"), 0o777))
			out, result := e.runPrepared(cfg)
			must.Eq(t, 0, result.ExitCode, must.Sprint(out))
			must.StrContains(t, out, "127.0.0.1")
			must.StrContains(t, out, "192.0.2.77")
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// The files of a task's stage are gone from the host when the task has started,
// and what the host has mounted stays.
func TestStageLeavesTheHostsMountsAlone(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		volume := filepath.Join(e.dir, "volume")
		must.NoError(t, os.MkdirAll(filepath.Join(volume, "disk"), 0o755))
		must.NoError(t, unix.Mount(volume, volume, "", unix.MS_BIND, ""))
		must.NoError(t, unix.Mount("", volume, "", unix.MS_SHARED, ""))
		must.NoError(t, unix.Mount("t", filepath.Join(volume, "disk"), "tmpfs", 0, ""))
		defer func() {
			_ = unix.Unmount(filepath.Join(volume, "disk"), unix.MNT_DETACH)
			_ = unix.Unmount(volume, unix.MNT_DETACH)
		}()
		must.NoError(t, os.WriteFile(filepath.Join(volume, "disk", "file"), []byte("on the disk\n"), 0o644))
		for _, propagation := range []string{"private", "host-to-task", "bidirectional"} {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", "cat /vol/disk/file; while ! cat /vol/new/file; do sleep 0.05; done"), func(cfg *drivers.TaskConfig) {
				cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/vol", PropagationMode: propagation}}
			})
			e.start(cfg)
			entries, err := os.ReadDir(filepath.Join(e.config.StateDir, "stages"))
			must.NoError(t, err)
			must.SliceEmpty(t, entries)
			if propagation != "private" {
				newMount := filepath.Join(volume, "new")
				must.NoError(t, os.MkdirAll(newMount, 0o755))
				must.NoError(t, unix.Mount("t", newMount, "tmpfs", 0, ""))
				must.NoError(t, os.WriteFile(filepath.Join(newMount, "file"), nil, 0o644))
				must.Eq(t, 0, e.wait(cfg.ID).ExitCode, must.Sprintf("%s: a mount of the host did not arrive", propagation))
				must.NoError(t, unix.Unmount(newMount, unix.MNT_DETACH))
			}
			e.end(cfg)
			_, err = os.Stat(filepath.Join(volume, "disk", "file"))
			must.NoError(t, err, must.Sprintf("%s: the host lost a mount", propagation))
		}
	})
}
