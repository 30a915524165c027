// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestImageCommandAndArgs(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig(""))
		must.Eq(t, "from the image\n", out)
		config := defaultTaskConfig("")
		config.Entrypoint, config.Args = []string{"echo", "a"}, []string{"b"}
		out, _ = e.run(config)
		must.Eq(t, "a b\n", out)
	})
}

func TestConformance_Start_Wait_AllocDir(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", `echo win > $NOMAD_ALLOC_DIR/out; cat /local/in; echo x > /secrets/s; stat -c %a /alloc`))
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "in"), []byte("from the host\n"), 0o644))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		text, err := os.ReadFile(filepath.Join(cfg.TaskDir().SharedAllocDir, "out"))
		must.NoError(t, err)
		must.Eq(t, "win\n", string(text))
		must.StrContains(t, e.logs(cfg, "stdout"), "from the host")
	})
}

func TestConformance_Capabilities(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		block := defaultTaskConfig("cat", "/proc/self/status")
		block.CapDrop = []string{"all"}
		out, _ := e.run(block)
		must.StrContains(t, out, "CapBnd:\t0000000000000000")

		block = defaultTaskConfig("true")
		block.CapAdd = []string{"sys_admin"}
		_, _, err := e.harness.StartTask(e.quietTask(block))
		must.ErrorContains(t, err, "CAP_SYS_ADMIN is not allowed")

		wide := e.with(func(c *config.Config) { c.AllowCaps = []string{"all"} })
		block = defaultTaskConfig("cat", "/proc/self/status")
		block.CapDrop, block.CapAdd = []string{"all"}, []string{"net_raw"}
		out, _ = wide.run(block)
		must.StrContains(t, out, "CapEff:\t0000000000002000")
	})
}

func TestHostnameAndHosts(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "hostname; cat /etc/hosts; pwd")
		config.Hostname, config.Cwd = "box", "/tmp"
		config.ExtraHosts = []string{"db:10.1.2.3", "v6:fd00::1"}
		out, _ := e.run(config)
		must.StrContains(t, out, "box\n")
		must.StrContains(t, out, "10.1.2.3 db\n")
		must.StrContains(t, out, "fd00::1 v6\n")
		must.StrContains(t, out, "/tmp\n")
		config.ExtraHosts = []string{"db"}
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, `extra_hosts: "db"`)
	})
}

func TestTTY(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "[ -t 1 ] && echo terminal")
		config.TTY = true
		cfg := e.task(config)
		e.start(cfg)
		e.wait(cfg.ID)
		must.Eq(t, "terminal\r\n", e.logs(cfg, "stdout"))
	})
}

func TestConformance_Mounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/rel/r")
		config.Mounts = []taskconfig.MountConfig{{Type: "volume", Source: "local/sub", Target: "/rel"}}
		cfg := e.task(config)
		must.NoError(t, os.MkdirAll(filepath.Join(cfg.TaskDir().LocalDir, "sub"), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "sub", "r"), []byte("relative\n"), 0o644))
		e.start(cfg)
		e.wait(cfg.ID)
		must.Eq(t, "relative\n", e.logs(cfg, "stdout"))
	})
}

func TestConformance_Tmpfs(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/proc/mounts")
		config.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: "/scratch", Size: "1M"}}
		out, _ := e.run(config)
		must.StrContains(t, out, "tmpfs /scratch tmpfs rw,nosuid,nodev")
		must.StrContains(t, out, "size=1024k")
	})
}

func TestConformance_VolumesEnabled(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := filepath.Join(e.dir, "host")
		must.NoError(t, os.MkdirAll(host, 0o755))
		config := defaultTaskConfig("sh", "-c", "echo hi > /bind/f; cat /ro/f; echo no > /ro/f || echo read-only")
		config.Mounts = []taskconfig.MountConfig{
			{Type: "bind", Source: host, Target: "/bind", Options: []string{"rbind", "rw"}},
			{Type: "bind", Source: host, Target: "/ro", ReadOnly: true},
		}
		out, _ := e.run(config)
		must.Eq(t, "hi\nread-only\n", out)
	})
}

func TestConformance_VolumesDisabled(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		disabled := e.with(func(c *config.Config) { c.Volumes.Enabled = false })
		limited := e.with(func(c *config.Config) { c.Volumes.AllowPaths = []string{"/srv"} })
		config := defaultTaskConfig("true")
		config.Mounts = []taskconfig.MountConfig{{Type: "bind", Source: "/etc", Target: "/e"}}
		_, _, err := disabled.harness.StartTask(disabled.quietTask(config))
		must.ErrorContains(t, err, "volumes are disabled")
		_, _, err = limited.harness.StartTask(limited.quietTask(config))
		must.ErrorContains(t, err, `allowed are ["/srv"]`)
	})
}

// What Nomad's device hook and its volumes add to a task.
func TestConformance_DevicesAndMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		device, volume := filepath.Join(e.dir, "device"), filepath.Join(e.dir, "volume")
		must.NoError(t, unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 9))))
		must.NoError(t, os.Mkdir(volume, 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(volume, "f"), []byte("of the volume\n"), 0o644))
		block := defaultTaskConfig("sh", "-c", "(: < /dev/given) 2>&1; (: > /dev/given) 2>&1; cat /volume/f; touch /volume/x || echo read-only")
		out, _ := e.run(block, func(cfg *drivers.TaskConfig) {
			cfg.Devices = []*drivers.DeviceConfig{{HostPath: device, TaskPath: "/dev/given", Permissions: "r"}}
			cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/volume", Readonly: true}}
		})
		// No driver is behind it: what may be opened fails in another way than what may not.
		must.StrContains(t, lines(out)[0], "No such device")
		must.StrContains(t, lines(out)[1], "not permitted")
		must.Eq(t, []string{"of the volume", "read-only"}, lines(out)[2:])

		named := e.with(func(c *config.Config) { c.AllowDevices = []string{"/dev/full"} })
		block = defaultTaskConfig("sh", "-c", "stat -c %t,%T /dev/mine")
		block.Devices = []string{"/dev/full:/dev/mine:rw"}
		out, _ = named.run(block)
		must.Eq(t, "1,7\n", out)
	})
}

func TestConformance_ReadonlyRootfs(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "touch /x || echo ro; touch /local/x && echo rw")
		config.ReadonlyRootfs = true
		out, _ := e.run(config)
		must.Eq(t, "ro\nrw\n", out)
	})
}

func TestSecurityDefaults(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig("sh", "-c", `cat /proc/self/status; dd if=/proc/kcore count=1 2>/dev/null | head -c 1`))
		must.StrContains(t, out, "NoNewPrivs:\t1")
		must.StrContains(t, out, "Seccomp:\t2")
		// The thirteen of Nomad's list: no NET_RAW (bit 13), no SYS_ADMIN (21).
		must.StrContains(t, out, "CapBnd:\t00000000a80405fb")
		must.StrContains(t, out, "CapEff:\t00000000a80405fb")
	})
}

func TestConformance_SecurityOpt(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/proc/self/status")
		config.Seccomp, config.NoNewPrivileges = false, false
		out, _ := e.run(config)
		must.StrContains(t, out, "Seccomp:\t0")
		must.StrContains(t, out, "NoNewPrivs:\t0")

		// A profile of the task's own, which forbids nothing but new directories.
		config = defaultTaskConfig("sh", "-c", "mktemp -d || echo forbidden")
		config.SeccompProfile = "local/profile.json"
		cfg := e.task(config)
		profile := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "profile.json"), []byte(profile), 0o644))
		e.start(cfg)
		e.wait(cfg.ID)
		must.Eq(t, "forbidden\n", e.logs(cfg, "stdout"))
	})
}

func TestConformance_User(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig("sh", "-c", "id; cat /proc/self/status"), func(cfg *drivers.TaskConfig) { cfg.User = "app" })
		must.StrContains(t, out, "uid=1000(app) gid=1000(app)")
		must.StrContains(t, out, "44(video)")
		must.StrContains(t, out, "CapEff:\t0000000000000000")
		out, _ = e.run(defaultTaskConfig("id"), func(cfg *drivers.TaskConfig) { cfg.User = "12:34" })
		must.StrContains(t, out, "uid=12 gid=34")
	})
}

func TestConformance_GroupAdd(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("id")
		config.GroupAdd = []string{"extra", "4711"}
		out, _ := e.run(config)
		must.StrContains(t, out, "77(extra)")
		must.StrContains(t, out, "4711")
	})
}

// A privileged task may write to its control group, and those that start after it
// may not: that would undo their limits.
func TestOnlyPrivilegedTasksWriteToControlGroups(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.AllowPrivileged = true })
		config := defaultTaskConfig("grep", "-c", " /sys/fs/cgroup[^ ]* cgroup2* rw", "/proc/mounts")
		config.Privileged = true
		out, _ := e.run(config)
		must.NotEq(t, "0\n", out)
		config.Privileged = false
		out, _ = e.run(config)
		must.Eq(t, "0\n", out)
	})
}

// The list stands in docs/docker.md.
func TestDeviceNodesOfATask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig("sh", "-c", "cd /dev; for f in *; do [ -c $f ] && [ ! -L $f ] && echo $f; done"))
		must.Eq(t, []string{"full", "null", "random", "tty", "urandom", "zero"}, lines(out))
	})
}

func TestConformance_IPCMode_ShmSizeConflict(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		allowed := e.with(func(c *config.Config) { c.AllowPrivileged = true })
		config := defaultTaskConfig("readlink", "/proc/self/ns/ipc")
		config.IPCMode = "host"
		out, _ := allowed.run(config)
		host, err := os.Readlink("/proc/self/ns/ipc")
		must.NoError(t, err)
		must.Eq(t, host+"\n", out)
		config.ShmSize = "64M"
		_, _, err = allowed.harness.StartTask(allowed.quietTask(config))
		must.ErrorContains(t, err, `shm_size: cannot be set with ipc_mode "host"`)
	})
}

func TestConformance_ChecksAllowRuntimes(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		block := defaultTaskConfig("true")
		block.Runtime = e.ownShim()
		_, _, err := e.harness.StartTask(e.quietTask(block))
		must.ErrorContains(t, err, "is not allowed on this node; allowed are")
		allowed := e.with(func(c *config.Config) { c.AllowRuntimes = []string{block.Runtime} })
		_, result := allowed.run(block)
		must.Eq(t, 0, result.ExitCode)
	})
}

// Docker's driver has GPUs from a runtime of NVIDIA's, which contradicts another.
// Here CDI gives them, under whatever runtime the task names.
func TestConformance_RuntimeConflict(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		block := defaultTaskConfig("stat", "-c", "%F", "/dev/nvidia0")
		block.Runtime = e.ownShim()
		allowed := e.with(func(c *config.Config) { c.AllowRuntimes = []string{block.Runtime} })
		out, _ := allowed.run(block, reserve(gpuA, 0))
		must.Eq(t, "character special file\n", out)
	})
}

// ownShim names the containerd's own runtime by its path, as another runtime
// would be named.
func (e *env) ownShim() string {
	e.t.Helper()
	path := filepath.Join(filepath.Dir(e.containerd.binary), "containerd-shim-runc-v2")
	must.True(e.t, fileExists(path))
	return path
}
