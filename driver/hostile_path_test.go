// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/helper/users"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// canary is a directory of the host that no task may read, write or mount.
type canary struct {
	t   *testing.T
	dir string
}

const canarySong = "this is the host's"

func newCanary(t *testing.T, dir string) canary {
	t.Helper()
	c := canary{t, filepath.Join(dir, "canary")}
	must.NoError(t, os.Mkdir(c.dir, 0o755))
	must.NoError(t, os.WriteFile(c.file(), []byte(canarySong), 0o666))
	must.NoError(t, os.Chmod(c.file(), 0o666))
	return c
}

func (c canary) file() string { return filepath.Join(c.dir, "file") }

// unharmed fails the test if the canary was changed or is in what a task said.
func (c canary) unharmed(output string) {
	c.t.Helper()
	text, err := os.ReadFile(c.file())
	must.NoError(c.t, err)
	must.Eq(c.t, canarySong, string(text), must.Sprint("a file of the host was written"))
	entries, err := os.ReadDir(c.dir)
	must.NoError(c.t, err)
	must.Len(c.t, 1, entries, must.Sprint("a directory of the host was written to"))
	must.StrNotContains(c.t, output, canarySong, must.Sprint("a file of the host was read"))
}

// refused starts a task and expects an error that says why it may not.
func (e *env) refused(cfg *drivers.TaskConfig, says string) {
	e.t.Helper()
	_, _, err := e.harness.StartTask(cfg)
	if err == nil {
		_ = e.driver.DestroyTask(cfg.ID, true)
	}
	must.ErrorContains(e.t, err, says)
}

// runPrepared is run for a task whose directory was prepared.
func (e *env) runPrepared(cfg *drivers.TaskConfig) (string, *drivers.ExitResult) {
	e.t.Helper()
	path := filepath.Join(e.dir, cfg.AllocID+".out")
	must.NoError(e.t, os.WriteFile(path, nil, 0o600))
	cfg.StdoutPath, cfg.StderrPath = path, os.DevNull
	e.start(cfg)
	result := e.wait(cfg.ID)
	must.NoError(e.t, e.driver.DestroyTask(cfg.ID, true))
	text, err := os.ReadFile(path)
	must.NoError(e.t, err)
	return string(text), result
}

func mounting(m taskconfig.MountConfig, command string, args ...string) taskconfig.Config {
	config := defaultTaskConfig(command, args...)
	config.Mounts = []taskconfig.MountConfig{m}
	return config
}

// The task directory is Nomad's. A task that had it as a whole replaced "local" by
// a link to /, and had the host at /local after its next start.
func TestHostileSourceIsTheTaskDirectory(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for _, source := range []string{".", "./", "local/..", "local/../.", "private", "./private/x"} {
			e.refused(e.quietTask(mounting(taskconfig.MountConfig{Source: source, Target: "/x"}, "true")), "is not the task's")
		}
		e.refused(e.quietTask(mounting(taskconfig.MountConfig{Source: "..", Target: "/x"}, "true")), "leaves the task directory")
		must.Eq(t, nil, e.leftovers())
	})
}

// Links in a directory of the task's stay in it, wherever they point to: back to
// the directory itself, or nowhere.
func TestHostileSourceIsALink(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		for target, inLocal := range map[string]bool{
			"/": true, "..": true, "../..": true, "../../../../../../../../": true,
			"/proc/self/root": false, "/proc/1/root": false, "../private": false, host.dir: false,
		} {
			cfg := e.quietTask(mounting(taskconfig.MountConfig{Source: "local/x", Target: "/x"}, "sh", "-c", "ls /x; echo evil > /x"+host.file()))
			must.NoError(t, os.Symlink(target, filepath.Join(cfg.TaskDir().LocalDir, "x")))
			if !inLocal {
				e.refused(cfg, "is not in the task directory")
				continue
			}
			out, _ := e.runPrepared(cfg)
			must.Eq(t, "x\n", out, must.Sprint(target))
			host.unharmed(out)
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// Directories that Nomad made and a task replaced by a link are refused.
func TestHostileDirectoriesOfTheAllocation(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		for _, name := range []string{"alloc", "alloc/logs", "alloc/data", "alloc/tmp", "web", "web/local", "web/secrets"} {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", "cat /local/file /alloc/file /secrets/file /alloc/logs/file; echo x > /local/new"))
			path := filepath.Join(cfg.AllocDir, name)
			_ = unix.Unmount(path, unix.MNT_DETACH) // secrets are a file system of their own
			must.NoError(t, os.Rename(path, path+".away"))
			must.NoError(t, os.Symlink(host.dir, path))
			e.refused(cfg, "it is a symbolic link")
			host.unharmed("")
			must.NoError(t, os.Remove(path))
			must.NoError(t, os.Rename(path+".away", path))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// Nomad's client works in an allocation as root and by name, while its tasks run and
// between two starts of them: what a task puts there leads it to no file of the host.
func TestNomadsClientFollowsNoLinksOfTasks(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", `
			for dir in data tmp logs; do
				mv /alloc/$dir /alloc/$dir.away; rm -rf /alloc/$dir; umount /alloc/$dir
				ln -sT `+host.dir+` /alloc/$dir && echo $dir was replaced
			done
			touch /alloc/data/x /alloc/tmp/x /alloc/x || echo nothing can be written
			rm -rf /secrets/nomad_token /secrets/dir
			ln -s `+host.file()+` /secrets/nomad_token; ln -s `+host.dir+` /secrets/dir
			echo mine > /secrets/target; ln -sf target /secrets/own; cat /secrets/own`))
		client := allocdir.NewAllocDir(hclog.NewNullLogger(), filepath.Dir(cfg.AllocDir), filepath.Join(e.dir, "mounts"), cfg.AllocID)
		for start := range 2 {
			cfg.ID = fmt.Sprintf("%s/web/%d", cfg.AllocID, start)
			out, _ := e.runPrepared(cfg)
			must.Eq(t, []string{"mine"}, lines(out))
			must.NoError(t, client.Build())
			for _, token := range []string{"nomad_token", "dir/file"} {
				must.ErrorIs(t, users.WriteFileFor(filepath.Join(cfg.TaskDir().SecretsDir, token), []byte("evil"), "nobody"), unix.ELOOP)
			}
			host.unharmed(out)
			var dir unix.Stat_t
			must.NoError(t, unix.Stat(host.dir, &dir))
			must.Eq(t, 0o755, dir.Mode&0o7777)
			must.Eq(t, 0, dir.Uid)
		}
	})
}

// What the driver itself writes for a task does not lie where the task can reach.
func TestHostileLinksAtTheDriversOwnFiles(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		newNode(e)
		cfg := e.task(defaultTaskConfig("true"), func(cfg *drivers.TaskConfig) {
			cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.1"}}
		})
		names := []string{"hosts", "resolv.conf", "output-opened-by", "ld.so.preload"}
		for _, name := range names {
			must.NoError(t, os.Symlink(host.file(), filepath.Join(cfg.TaskDir().Dir, name)))
		}
		e.start(cfg)
		e.wait(cfg.ID)
		host.unharmed("")
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(cfg.TaskDir().Dir, name))
			must.NoError(t, err)
			must.Eq(t, host.file(), target, must.Sprint("the driver touches files of the task directory"))
		}
	})
}

// swapWithLink makes path a directory or a file and a link to target in turn, as
// fast as it can, like a sibling task that holds a descriptor of the directory.
func swapWithLink(t *testing.T, path, target string) (stop func()) {
	t.Helper()
	must.NoError(t, os.Symlink(target, path+".link"))
	done := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+".link", unix.RENAME_EXCHANGE)
			}
		}
	})
	return func() { close(done); swapping.Wait() }
}

// races is how often a start is tried against a task that swaps what it names.
// Before sources were held by descriptor, every third start was lost.
func races() int {
	if everything() {
		return 12
	}
	return 4
}

// What a start names is replaced by a link, and back, all the time.
func TestHostileSwaps(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		profile := []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`)
		allowed := filepath.Join(e.dir, "allowed")
		must.NoError(t, os.Mkdir(allowed, 0o755))
		limited := e.with(func(c *config.Config) { c.Volumes.AllowPaths = []string{allowed} })
		read := []string{"-c", "cat /x/file /x; echo evil > /x/evil; echo evil > /x"}
		attacks := map[string]struct {
			config taskconfig.Config
			target string
			// put makes what the attacker shows between the links.
			put func(local string) string
		}{
			"mount of a directory": {mounting(taskconfig.MountConfig{Source: "local/x", Target: "/x"}, "sh", read...), host.dir, func(local string) string {
				must.NoError(t, os.Mkdir(filepath.Join(local, "x"), 0o777))
				return filepath.Join(local, "x")
			}},
			"mount below a directory": {mounting(taskconfig.MountConfig{Source: "local/y/canary", Target: "/x"}, "sh", read...), e.dir, func(local string) string {
				must.NoError(t, os.MkdirAll(filepath.Join(local, "y", "canary"), 0o777))
				return filepath.Join(local, "y")
			}},
			"mount of a file": {mounting(taskconfig.MountConfig{Source: "local/x", Target: "/x"}, "sh", read...), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x"), nil, 0o666))
				return filepath.Join(local, "x")
			}},
			"mount of an allowed path": {mounting(taskconfig.MountConfig{Source: filepath.Join(allowed, "x"), Target: "/x"}, "sh", read...), host.dir, func(string) string {
				must.NoError(t, os.MkdirAll(filepath.Join(allowed, "x"), 0o777))
				return filepath.Join(allowed, "x")
			}},
			"mount point": {mounting(taskconfig.MountConfig{Type: "tmpfs", Target: "/local/x"}, "sh", "-c", "true"), host.dir, func(local string) string {
				must.NoError(t, os.Mkdir(filepath.Join(local, "x"), 0o777))
				return filepath.Join(local, "x")
			}},
			"profile": {func() taskconfig.Config {
				config := defaultTaskConfig("true")
				config.SeccompProfile = "local/x"
				return config
			}(), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x"), profile, 0o666))
				return filepath.Join(local, "x")
			}},
			"archive": {func() taskconfig.Config {
				config := defaultTaskConfig("true")
				config.Image = "local/x.tar"
				return config
			}(), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x.tar"), testArchive(t), 0o666))
				return filepath.Join(local, "x.tar")
			}},
		}
		for _, name := range drawnFrom(e, slices.Sorted(maps.Keys(attacks))) {
			attack := attacks[name]
			cfg := limited.quietTask(attack.config)
			stop := swapWithLink(t, attack.put(cfg.TaskDir().LocalDir), attack.target)
			ran := 0
			for range races() {
				again := cfg.Copy()
				again.ID += "x"
				again.StdoutPath, again.StderrPath = filepath.Join(e.dir, "out"), os.DevNull
				must.NoError(t, os.WriteFile(again.StdoutPath, nil, 0o600))
				_, _, err := limited.harness.StartTask(again)
				if err == nil {
					ran++
					limited.wait(again.ID)
					must.NoError(t, limited.harness.DestroyTask(again.ID, true))
				}
				out, readErr := os.ReadFile(again.StdoutPath)
				must.NoError(t, readErr)
				host.unharmed(string(out) + fmt.Sprint(err))
			}
			stop()
			t.Logf("%s: %d of %d starts got through, all contained", name, ran, races())
			must.NoError(t, os.RemoveAll(filepath.Join(allowed, "x.link")))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// Archives and profiles are files. Another kind of file would have the driver wait
// for a writer, or act on a device.
func TestHostileKindsOfFiles(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		kinds := map[string]func(path string) error{
			"pipe":      func(path string) error { return unix.Mkfifo(path, 0o666) },
			"device":    func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
			"disk":      func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 250))) },
			"directory": func(path string) error { return os.Mkdir(path, 0o777) },
			"socket":    func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
		}
		for name, put := range kinds {
			config := defaultTaskConfig("true")
			config.Image = "local/x.tar"
			cfg := e.quietTask(config)
			must.NoError(t, put(filepath.Join(cfg.TaskDir().LocalDir, "x.tar")), must.Sprint(name))
			e.refused(cfg, "not a regular file")
			config = defaultTaskConfig("true")
			config.SeccompProfile = "local/x"
			cfg = e.quietTask(config)
			must.NoError(t, put(filepath.Join(cfg.TaskDir().LocalDir, "x")), must.Sprint(name))
			e.refused(cfg, "not a regular file")
		}
		for _, name := range []string{"device", "disk"} {
			cfg := e.quietTask(mounting(taskconfig.MountConfig{Source: "local/x", Target: "/x"}, "true"))
			must.NoError(t, kinds[name](filepath.Join(cfg.TaskDir().LocalDir, "x")))
			e.refused(cfg, "is a device")
		}
		for text, says := range map[string]string{
			`{"defaultAction":"SCMP_ACT_NOTIFY","listenerPath":"/run/containerd/containerd.sock"}`: "listenerPath is not allowed",
			`{"defaultAction":"SCMP_ACT_ALLOW","ListenerPath":"/run/x","listenerMetadata":"x"}`:    "listenerPath is not allowed",
			`not a profile`:            "is not a profile",
			strings.Repeat(" ", 2<<20): "larger than",
		} {
			config := defaultTaskConfig("true")
			config.SeccompProfile = "local/x"
			cfg := e.quietTask(config)
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "x"), []byte(text), 0o644))
			e.refused(cfg, says)
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// What tasks of one allocation leave for each other is neither a device nor a way
// to another user.
func TestFilesOfTheAllocationGiveNothing(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", `grep -E ' /(alloc|alloc/(logs|data|tmp)|local|secrets) ' /proc/self/mountinfo | head -n 9
			mknod /alloc/data/zero c 1 5; cat /alloc/data/zero || echo no device`)
		out, _ := e.run(config)
		found := 0
		for _, line := range lines(out) {
			if fields := strings.Fields(line); len(fields) > 5 {
				found++
				must.StrContains(t, fields[5], "nosuid", must.Sprint(line))
				must.StrContains(t, fields[5], "nodev", must.Sprint(line))
			}
		}
		must.Eq(t, 6, found)
		must.StrContains(t, out, "no device")
	})
}
