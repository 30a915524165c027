// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// TestHostileJobs holds jobs that want more than they may. Each is refused with
// an error that names what is wrong, before anything exists.
func TestHostileJobs(t *testing.T) {
	type change = func(*taskconfig.Config)
	mount := func(m taskconfig.MountConfig) change {
		return func(c *taskconfig.Config) { c.Mounts = []taskconfig.MountConfig{m} }
	}
	jobs := []struct {
		name   string
		change change
		says   string
	}{
		{"mount leaves the task directory", mount(taskconfig.MountConfig{Source: "../../../etc", Target: "/x"}), "leaves the task directory"},
		{"mount leaves it half-way", mount(taskconfig.MountConfig{Source: "local/../../x", Target: "/x"}), "leaves the task directory"},
		{"mount of a host path", mount(taskconfig.MountConfig{Type: "bind", Source: "/etc", Target: "/x"}), "volumes are disabled"},
		{"mount over the root", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/"}), "not an absolute, clean path"},
		{"mount over proc", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/proc"}), `target "/proc" is the runtime's`},
		{"mount over sys", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/sys"}), `target "/sys" is the runtime's`},
		{"mount over dev", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/dev"}), `target "/dev" is the runtime's`},
		{"mount target climbs", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/a/../.."}), "not an absolute, clean path"},
		{"mount over the allocation", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/secrets"}), `cover "/secrets"`},
		{"mount over hosts", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/etc"}), "would cover"},
		{"mount of another type", mount(taskconfig.MountConfig{Type: "overlay", Source: "local", Target: "/x"}), `type "overlay" is not one of`},
		{"mount option that names a path", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Options: []string{"lowerdir=/"}}), `option "lowerdir=/" is not one of a tmpfs`},
		{"mount option smuggled", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Options: []string{"ro,size=1"}}), "is not one of a"},
		{"mount without source", mount(taskconfig.MountConfig{Type: "bind", Target: "/x"}), "source is missing"},
		{"mount of giant size", mount(taskconfig.MountConfig{Type: "tmpfs", Target: "/x", Size: "99999999999999999999G"}), "size"},
		{"mount propagation", mount(taskconfig.MountConfig{Source: "local", Target: "/x", Propagation: "everywhere"}), `propagation "everywhere"`},
		{"NUL in a mount", mount(taskconfig.MountConfig{Source: "local\x00/etc", Target: "/x"}), "not valid text"},

		{"privileged", func(c *taskconfig.Config) { c.Privileged = true }, "allow_privileged"},
		{"host PID namespace", func(c *taskconfig.Config) { c.PIDMode = "host" }, "allow_privileged"},
		{"host IPC namespace", func(c *taskconfig.Config) { c.IPCMode = "host" }, "allow_privileged"},
		{"PID namespace of another", func(c *taskconfig.Config) { c.PIDMode = "container:web" }, "pid_mode"},
		{"capability", func(c *taskconfig.Config) { c.CapAdd = []string{"SYS_ADMIN"} }, "CAP_SYS_ADMIN is not allowed"},
		{"unknown capability", func(c *taskconfig.Config) { c.CapAdd = []string{"CAP_EVERYTHING"} }, `unknown capability "CAP_EVERYTHING"`},
		{"device outside dev", func(c *taskconfig.Config) { c.Devices = []string{"/etc/shadow:/dev/x"} }, "devices:"},
		{"device climbs", func(c *taskconfig.Config) { c.Devices = []string{"/dev/../etc/shadow"} }, "devices:"},
		{"device permissions", func(c *taskconfig.Config) { c.Devices = []string{"/dev/null:/dev/null:rwx"} }, "devices:"},
		{"device that the operator did not allow", func(c *taskconfig.Config) { c.Devices = []string{"/dev/mem"} }, "allow_devices"},
		{"CDI device that the operator did not allow", func(c *taskconfig.Config) { c.CDIDevices = []string{"nomad-gpu.sim/gpu=" + gpuA} }, "cdi_devices"},
		{"sysctl of the host", func(c *taskconfig.Config) { c.Sysctl = []map[string]string{{"kernel.core_pattern": "|/x"}} }, "not a container's own"},
		{"sysctl of the host's network", func(c *taskconfig.Config) {
			c.HostNetwork = true
			c.Sysctl = []map[string]string{{"net.ipv4.ip_forward": "1"}}
		}, "host's network"},
		{"runtime", func(c *taskconfig.Config) { c.Runtime = "io.containerd.evil.v1" }, `runtime: "io.containerd.evil.v1" is not allowed`},
		{"seccomp profile of the host", func(c *taskconfig.Config) { c.SeccompProfile = "/etc/shadow" }, "seccomp_profile"},
		{"seccomp profile climbs", func(c *taskconfig.Config) { c.SeccompProfile = "../../x" }, "leaves the task directory"},

		{"image of a host path", func(c *taskconfig.Config) { c.Image = "/var/lib/other/image.tar" }, "leaves the task directory"},
		{"image climbs", func(c *taskconfig.Config) { c.Image = "../other/image.tar" }, "leaves the task directory"},
		{"image is not a reference", func(c *taskconfig.Config) { c.Image = "UPPER case!" }, "is not a reference"},
		{"image is empty", func(c *taskconfig.Config) { c.Image = "" }, "image: is missing"},
		{"bad UTF-8 in the command", func(c *taskconfig.Config) { c.Command = "sh\xff" }, "not valid text"},
		{"NUL in an argument", func(c *taskconfig.Config) { c.Args = []string{"a\x00b"} }, "not valid text"},
		{"label of ours", func(c *taskconfig.Config) { c.Labels = []map[string]string{{record.LabelNode: "other"}} }, "is reserved"},
		{"label of containerd", func(c *taskconfig.Config) { c.Labels = []map[string]string{{"containerd.io/gc.root": "x"}} }, "is reserved"},
		{"giant label", func(c *taskconfig.Config) { c.Labels = []map[string]string{{"a": strings.Repeat("x", 5000)}} }, "longer than"},
		{"hosts entry with a second line", func(c *taskconfig.Config) { c.ExtraHosts = []string{"a\n10.0.0.1 bank.example:10.0.0.2"} }, "extra_hosts"},
		{"hostname that no kernel takes", func(c *taskconfig.Config) { c.Hostname = strings.Repeat("h", 65) }, "hostname"},
		{"giant pids limit", func(c *taskconfig.Config) { c.PidsLimit = 1 << 40 }, "pids_limit"},
		{"negative pids limit", func(c *taskconfig.Config) { c.PidsLimit = -5 }, "pids_limit"},
		{"oom score of a system daemon", func(c *taskconfig.Config) { c.OOMScoreAdj = -1000 }, "oom_score_adj"},
		{"unknown ulimit", func(c *taskconfig.Config) { c.Ulimit = []map[string]string{{"everything": "1"}} }, "ulimit"},
		{"giant shm", func(c *taskconfig.Config) { c.ShmSize = "-1G" }, "shm_size"},
		{"short period", func(c *taskconfig.Config) { c.CPUCFSPeriod = 5 }, "cpu_cfs_period"},
		{"relative working directory", func(c *taskconfig.Config) { c.Cwd = "../.." }, `cwd "../.." is not absolute`},
		{"working directory of a descriptor", func(c *taskconfig.Config) { c.Cwd = "/tmp/../dev/fd/7" }, `cwd: "/tmp/../dev/fd/7" is not valid`},
		{"working directory in control groups", func(c *taskconfig.Config) { c.Cwd = "/sys/fs/cgroup" }, `cwd: "/sys/fs/cgroup" is not valid`},
		{"bad UTF-8 in the working directory", func(c *taskconfig.Config) { c.Cwd = "/\xff" }, "not valid text"},
		{"bad UTF-8 in a group", func(c *taskconfig.Config) { c.GroupAdd = []string{"a\xff"} }, "group_add"},
		{"unknown group", func(c *taskconfig.Config) { c.GroupAdd = []string{"nobody-knows"} }, `group_add ["nobody-knows"]`},
		{"giant argument", func(c *taskconfig.Config) { c.Args = []string{strings.Repeat("x", 1<<20)} }, "the kernel takes"},
		{"CPUs that are not there", func(c *taskconfig.Config) { c.CPUSetCPUs = "0-4095" }, "cpuset"},
		{"CPUs that are none", func(c *taskconfig.Config) { c.CPUSetCPUs = "all; reboot" }, "cpuset_cpus"},
		{"sysctl with a second line", func(c *taskconfig.Config) { c.Sysctl = []map[string]string{{"net.core.somaxconn": "1\n2"}} }, "sysctl"},
		{"sysctl that climbs", func(c *taskconfig.Config) { c.Sysctl = []map[string]string{{"net/../kernel/core_pattern": "x"}} }, "sysctl"},
		{"sysctl that climbs behind its prefix", func(c *taskconfig.Config) {
			c.Sysctl = []map[string]string{{"net.ipv4/../../kernel/core_pattern": "x"}}
		}, "is not a setting"},
		{"giant ulimit", func(c *taskconfig.Config) { c.Ulimit = []map[string]string{{"nofile": "99999999999999999999"}} }, "ulimit"},
		{"giant swap", func(c *taskconfig.Config) { c.MemorySwap = "99999999999999999999G" }, "memory_swap"},
		{"negative swap", func(c *taskconfig.Config) { c.MemorySwap = "-1G" }, "memory_swap"},
		{"snapshotter that is not there", func(c *taskconfig.Config) { c.Snapshotter = "evil" }, `snapshotter "evil"`},
		{"snapshotter of another form", func(c *taskconfig.Config) { c.Snapshotter = "../overlayfs" }, "../overlayfs"},
		{"pull timeout that is none", func(c *taskconfig.Config) { c.Image, c.ImagePullTimeout = "example.test/none:1", "soon" }, `image_pull_timeout: "soon"`},
		{"seccomp profile that is none", func(c *taskconfig.Config) { c.SeccompProfile = "local" }, "not a regular file"},
		{"giant compute", func(c *taskconfig.Config) { c.GPU.Compute = 1 << 50 }, "gpu.compute"},
		{"GPU memory overflows", func(c *taskconfig.Config) { c.GPU.Memory = "99999999999999999G" }, "too large"},
	}
	withContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.Volumes.Enabled = false })
		newNode(e)
		refused := func(name, says string, config taskconfig.Config, change ...func(*drivers.TaskConfig)) {
			t.Helper()
			_, _, err := e.harness.StartTask(e.quietTask(config, append(change, reserve(gpuA, 0))...))
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: got %v, want %q", name, err, says)
			}
		}
		for _, job := range jobs {
			config := defaultTaskConfig("true")
			job.change(&config)
			refused(job.name, job.says, config)
		}
		// What stands beside the config block.
		for _, user := range []string{"nobody-knows", "app:nobody-knows", "-1", "99999999999", "a:b:c", "app\x00root"} {
			refused("user", fmt.Sprintf("user %q", user), defaultTaskConfig("true"), func(cfg *drivers.TaskConfig) { cfg.User = user })
		}
		for key, value := range map[string]string{"BIG": strings.Repeat("x", 1<<20), "NUL": "a\x00b"} {
			refused("environment", fmt.Sprintf("variable %q", key), defaultTaskConfig("true"), func(cfg *drivers.TaskConfig) { cfg.Env[key] = value })
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// TestHostileLinks plants symbolic links where the driver looks for files.
func TestHostileLinks(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		secret := filepath.Join(e.dir, "secret")
		must.NoError(t, os.MkdirAll(secret, 0o700))
		must.NoError(t, os.WriteFile(filepath.Join(secret, "key"), []byte("top secret"), 0o600))
		start := func(config taskconfig.Config, link, target string) error {
			cfg := e.quietTask(config)
			must.NoError(t, os.Symlink(target, filepath.Join(cfg.TaskDir().LocalDir, link)))
			_, _, err := e.harness.StartTask(cfg)
			return err
		}
		for _, target := range []string{secret, "../../../../../.." + secret} {
			config := defaultTaskConfig("cat", "/x/key")
			config.Mounts = []taskconfig.MountConfig{{Source: "local/link", Target: "/x"}}
			must.ErrorContains(t, start(config, "link", target), "not in the task directory")
			config = defaultTaskConfig("true")
			config.Image = "local/link.tar"
			must.ErrorContains(t, start(config, "link.tar", target+"/key"), "not in the task directory")
			config = defaultTaskConfig("true")
			config.SeccompProfile = "local/link"
			must.ErrorContains(t, start(config, "link", target+"/key"), "not in the task directory")
		}
		// An allowed path that is a link to one that is not.
		limited := e.with(func(c *config.Config) { c.Volumes.AllowPaths = []string{filepath.Join(e.dir, "ok")} })
		must.NoError(t, os.MkdirAll(filepath.Join(e.dir, "ok"), 0o755))
		must.NoError(t, os.Symlink(secret, filepath.Join(e.dir, "ok", "link")))
		config := defaultTaskConfig("true")
		config.Mounts = []taskconfig.MountConfig{{Type: "bind", Source: filepath.Join(e.dir, "ok", "link"), Target: "/x"}}
		_, _, err := limited.harness.StartTask(limited.quietTask(config))
		must.ErrorContains(t, err, "not allowed on this node")
		must.Eq(t, nil, e.leftovers())
	})
}

// TestHostileEnvironment tries to raise a share by every way that a user has.
func TestHostileEnvironment(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0), func(cfg *drivers.TaskConfig) {
			for _, key := range []string{
				"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
				"CUDA_MPS_SM_PARTITION", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
				"NOMAD_GPU_aaaaaaaa_9",
			} {
				cfg.Env[key] = "raised"
			}
			cfg.Env["LD_PRELOAD"] = "/local/evil.so"
		})
		e.start(cfg)
		result, err := e.harness.ExecTask(cfg.ID, []string{"env"}, callTimeout)
		must.NoError(t, err)
		out := string(result.Stdout)
		must.StrNotContains(t, out, "raised")
		must.StrContains(t, out, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M")
		must.StrContains(t, out, "NVIDIA_VISIBLE_DEVICES=void")
	})
}
