package driver

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
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

func mounting(m spec.MountConfig, command string, args ...string) spec.Config {
	config := defaultTaskConfig(command, args...)
	config.Mounts = []spec.MountConfig{m}
	return config
}

// The task directory is Nomad's. A task that had it as a whole replaced "local" by
// a link to /, and had the host at /local after its next start.
func TestHostileSourceIsTheTaskDirectory(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		for _, source := range []string{".", "./", "local/..", "local/../.", "private", "./private/x"} {
			e.refused(e.quietTask(mounting(spec.MountConfig{Source: source, Target: "/x"}, "true")), "is not the task's")
		}
		e.refused(e.quietTask(mounting(spec.MountConfig{Source: "..", Target: "/x"}, "true")), "leaves the task directory")
		must.Eq(t, nil, e.leftovers())
	})
}

// Links in a directory of the task's stay in it, wherever they point to: back to
// the directory itself, or nowhere.
func TestHostileSourceIsALink(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		for target, inLocal := range map[string]bool{
			"/": true, "..": true, "../..": true, "../../../../../../../../": true,
			"/proc/self/root": false, "/proc/1/root": false, "../private": false, host.dir: false,
		} {
			cfg := e.quietTask(mounting(spec.MountConfig{Source: "local/x", Target: "/x"}, "sh", "-c", "ls /x; echo evil > /x"+host.file()))
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
		for _, name := range []string{"alloc", "alloc/logs", "web", "web/local", "web/secrets"} {
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

// What the driver itself writes for a task does not lie where the task can reach.
func TestHostileLinksAtTheDriversOwnFiles(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
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

// The pipes of Nomad's log collector lie where tasks of other drivers can write:
// what is in their place must be a pipe, or nothing starts.
func TestHostileLogPipes(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		inPlace := map[string]func(path string) error{
			"a link to a file":      func(path string) error { return os.Symlink(host.file(), path) },
			"a link to a pipe":      func(path string) error { return os.Symlink(path+".away", path) },
			"a file":                func(path string) error { return os.WriteFile(path, nil, 0o666) },
			"a directory":           func(path string) error { return os.Mkdir(path, 0o777) },
			"a device":              func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
			"a hard link to a file": func(path string) error { return os.Link(host.file(), path) },
			"nothing":               func(string) error { return nil },
		}
		for name, put := range inPlace {
			for _, stream := range []string{"stdout", "stderr"} {
				cfg := e.quietTask(defaultTaskConfig("sh", "-c", "echo evil; echo evil >&2"))
				for stream, path := range map[string]*string{"stdout": &cfg.StdoutPath, "stderr": &cfg.StderrPath} {
					*path = filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
					must.NoError(t, unix.Mkfifo(*path, 0o600))
				}
				path := filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
				must.NoError(t, os.Rename(path, path+".away"))
				must.NoError(t, put(path), must.Sprint(name))
				e.refused(cfg, "open the task's "+stream)
				host.unharmed("")
			}
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// A start that is repeated writes to the log file itself, which must be one.
func TestHostileLogFiles(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "echo evil"))
		for stream, path := range map[string]*string{"stdout": &cfg.StdoutPath, "stderr": &cfg.StderrPath} {
			*path = filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
			must.NoError(t, unix.Mkfifo(*path, 0o600))
		}
		must.NoError(t, newOutputMarks(e.driver.settings).of(cfg.ID).set())
		must.NoError(t, os.Symlink(host.file(), filepath.Join(cfg.TaskDir().LogDir, "web.stdout.7")))
		e.refused(cfg, `open the task's log "web.stdout.7"`)
		host.unharmed("")
		must.Eq(t, nil, e.leftovers())
	})
}

// No container can put anything into the place of another's pipes.
func TestLogsAreReadOnlyInContainers(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig("sh", "-c", `
			touch /alloc/logs/x || echo no new file
			rm -rf /alloc/logs; mv /alloc/logs /alloc/away || echo no other place
			ln -sfn /etc /alloc/logs; umount /alloc/logs || echo no unmount
			ls -d /alloc/logs; touch /alloc/data/x && echo data can be written`))
		must.Eq(t, []string{"no new file", "no other place", "no unmount", "/alloc/logs", "data can be written"}, lines(out))
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
const races = 12

// What a start names is replaced by a link, and back, all the time.
func TestHostileSwaps(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		profile := []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`)
		allowed := filepath.Join(e.dir, "allowed")
		must.NoError(t, os.Mkdir(allowed, 0o755))
		limited := e.with(func(c *Config) { c.Volumes.AllowPaths = []string{allowed} })
		read := []string{"-c", "cat /x/file /x; echo evil > /x/evil; echo evil > /x"}
		for name, attack := range map[string]struct {
			config spec.Config
			target string
			// put makes what the attacker shows between the links.
			put func(local string) string
		}{
			"mount of a directory": {mounting(spec.MountConfig{Source: "local/x", Target: "/x"}, "sh", read...), host.dir, func(local string) string {
				must.NoError(t, os.Mkdir(filepath.Join(local, "x"), 0o777))
				return filepath.Join(local, "x")
			}},
			"mount below a directory": {mounting(spec.MountConfig{Source: "local/y/canary", Target: "/x"}, "sh", read...), e.dir, func(local string) string {
				must.NoError(t, os.MkdirAll(filepath.Join(local, "y", "canary"), 0o777))
				return filepath.Join(local, "y")
			}},
			"mount of a file": {mounting(spec.MountConfig{Source: "local/x", Target: "/x"}, "sh", read...), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x"), nil, 0o666))
				return filepath.Join(local, "x")
			}},
			"mount of an allowed path": {mounting(spec.MountConfig{Source: filepath.Join(allowed, "x"), Target: "/x"}, "sh", read...), host.dir, func(string) string {
				must.NoError(t, os.MkdirAll(filepath.Join(allowed, "x"), 0o777))
				return filepath.Join(allowed, "x")
			}},
			"mount point": {mounting(spec.MountConfig{Type: "tmpfs", Target: "/local/x"}, "sh", "-c", "true"), host.dir, func(local string) string {
				must.NoError(t, os.Mkdir(filepath.Join(local, "x"), 0o777))
				return filepath.Join(local, "x")
			}},
			"profile": {func() spec.Config {
				config := defaultTaskConfig("true")
				config.SeccompProfile = "local/x"
				return config
			}(), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x"), profile, 0o666))
				return filepath.Join(local, "x")
			}},
			"archive": {func() spec.Config {
				config := defaultTaskConfig("true")
				config.Image = "local/x.tar"
				return config
			}(), host.file(), func(local string) string {
				must.NoError(t, os.WriteFile(filepath.Join(local, "x.tar"), testArchive(t), 0o666))
				return filepath.Join(local, "x.tar")
			}},
		} {
			cfg := limited.quietTask(attack.config)
			stop := swapWithLink(t, attack.put(cfg.TaskDir().LocalDir), attack.target)
			ran := 0
			for range races {
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
			t.Logf("%s: %d of %d starts got through, all contained", name, ran, races)
			must.NoError(t, os.RemoveAll(filepath.Join(allowed, "x.link")))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

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
	tmpfs := func(target string) spec.MountConfig { return spec.MountConfig{Type: "tmpfs", Target: target} }
	local := func(target string) spec.MountConfig { return spec.MountConfig{Source: "local", Target: target} }
	const kernels = "which is the runtime's"
	for name, attack := range map[string]struct {
		links map[string]string
		mount spec.MountConfig
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
			forEachContainerd(t, func(t *testing.T, e *env) {
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
		config.Mounts = []spec.MountConfig{
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

// A mount point is made on the host, by root: not where the task may only read.
func TestReadOnlyMountsGetNoMountPoints(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		volume := filepath.Join(e.dir, "volume")
		must.NoError(t, os.MkdirAll(filepath.Join(volume, "there"), 0o755))
		below := func(targets ...string) *drivers.TaskConfig {
			config := defaultTaskConfig("sh", "-c", "touch /vol/there/in && touch /vol/x || echo read-only")
			for _, target := range targets {
				config.Mounts = append(config.Mounts, spec.MountConfig{Type: "tmpfs", Target: target})
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
	forEachContainerd(t, func(t *testing.T, e *env) {
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

// A task called ".." would have every allocation of the node for its directory.
func TestHostileTaskNames(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		named := func(name string) func(*drivers.TaskConfig) { return func(cfg *drivers.TaskConfig) { cfg.Name = name } }
		for _, name := range []string{".", "..", "alloc", "a\nb", "a\x1b[2Jb", "a\u202eb", "a\x7f", "a/b"} {
			cfg := e.quietTask(mounting(spec.MountConfig{Source: "local", Target: "/x"}, "true"))
			named(name)(cfg)
			e.refused(cfg, "is not a name")
		}
		for _, name := range []string{"50%", "%2e%2e", "...", "a b", "größe", "-x", "%s"} {
			cfg := e.task(defaultTaskConfig("echo", "it runs"), named(name))
			e.start(cfg)
			e.wait(cfg.ID)
			must.Eq(t, "it runs\n", e.logs(cfg, "stdout"), must.Sprint(name))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// A second line in a file of the network would be another author's entry.
func TestHostileNames(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		for name, change := range map[string]func(*drivers.TaskConfig){
			"dns: searches": func(cfg *drivers.TaskConfig) {
				cfg.DNS = &drivers.DNSConfig{Searches: []string{"a\nnameserver 192.0.2.1"}}
			},
			"dns: servers": func(cfg *drivers.TaskConfig) { cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.1\rx"}} },
			"dns: options": func(cfg *drivers.TaskConfig) {
				cfg.DNS = &drivers.DNSConfig{Options: []string{"ndots:1\u2028x"}}
			},
			"hostname": func(cfg *drivers.TaskConfig) {
				cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: "a\n192.0.2.1 bank", Address: "192.0.2.2"}}
			},
		} {
			e.refused(e.quietTask(defaultTaskConfig("true"), change), name)
		}
		for _, host := range []string{"a\n192.0.2.1 bank:192.0.2.2", "a b:192.0.2.2", "a\x85b:192.0.2.2", "a#:192.0.2.2"} {
			config := defaultTaskConfig("true")
			config.ExtraHosts = []string{host}
			e.refused(e.quietTask(config), "extra_hosts")
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// Archives and profiles are files. Another kind of file would have the driver wait
// for a writer, or act on a device.
func TestHostileKindsOfFiles(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
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
			cfg := e.quietTask(mounting(spec.MountConfig{Source: "local/x", Target: "/x"}, "true"))
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

// Images whose links point at the driver's mounts run, and are contained.
func TestImagesWithLinksForOurMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("")
		config.Image, config.Entrypoint = "local/image.tar", []string{"sh", "-c", "cat /etc/hosts /etc/resolv.conf && touch /data/x && ls /data /local"}
		config.Mounts = []spec.MountConfig{{Source: "local/data", Target: "/data"}}
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

// What tasks of one allocation leave for each other is neither a device nor a way
// to another user.
func TestFilesOfTheAllocationGiveNothing(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", `grep -E ' /(alloc|alloc/logs|local|secrets) ' /proc/self/mountinfo | head -n 9
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
		must.Eq(t, 4, found)
		must.StrContains(t, out, "no device")
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
			must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
			_, err = os.Stat(filepath.Join(volume, "disk", "file"))
			must.NoError(t, err, must.Sprintf("%s: the host lost a mount", propagation))
		}
	})
}
