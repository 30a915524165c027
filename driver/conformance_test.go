package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// These are the behaviours that users of Nomad's docker and podman drivers rely
// on, under the names that their tests have.

// eventually waits until check succeeds.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(check), wait.Timeout(30*time.Second), wait.Gap(20*time.Millisecond)), must.Sprint(what))
}

func TestStartKillWait(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		must.NoError(t, e.harness.StopTask(cfg.ID, 10*time.Second, "SIGKILL"))
		result := e.wait(cfg.ID)
		must.Eq(t, 137, result.ExitCode)
		must.Eq(t, 9, result.Signal)
		must.False(t, result.OOMKilled)
		must.ErrorContains(t, e.harness.SignalTask("no-such-task", "SIGHUP"), "not found")
	})
}

// trap answers a signal with an exit code of its own.
const trap = `trap 'echo got it; exit 42' USR1; trap 'exit 43' TERM; echo ready; while true; do sleep 0.05; done`

func (e *env) waitForLog(cfg *drivers.TaskConfig, text string) {
	e.t.Helper()
	eventually(e.t, "log holds "+text, func() bool {
		log, _ := os.ReadFile(filepath.Join(cfg.TaskDir().LogDir, cfg.Name+".stdout.0"))
		return strings.Contains(string(log), text)
	})
}

func TestStopSignal(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		for signal, code := range map[string]int{"SIGUSR1": 42, "": 43} {
			cfg := e.task(defaultTaskConfig("sh", "-c", trap))
			e.start(cfg)
			e.waitForLog(cfg, "ready")
			began := time.Now()
			must.NoError(t, e.harness.StopTask(cfg.ID, 20*time.Second, signal))
			must.Less(t, 10*time.Second, time.Since(began), must.Sprint("the kill timeout was slept in full"))
			must.Eq(t, code, e.wait(cfg.ID).ExitCode)
		}
		must.ErrorContains(t, func() error {
			cfg := e.task(defaultTaskConfig("sleep", "1000"))
			e.start(cfg)
			return e.harness.StopTask(cfg.ID, time.Second, "SIGNONSENSE")
		}(), "SIGNONSENSE")
	})
}

func TestStartKillTimeout(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", `trap '' TERM; echo ready; while true; do sleep 0.05; done`))
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		must.NoError(t, e.harness.StopTask(cfg.ID, 300*time.Millisecond, "SIGTERM"))
		must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
	})
}

func TestSignalTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", trap))
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		must.NoError(t, e.harness.SignalTask(cfg.ID, "SIGUSR1"))
		must.Eq(t, 42, e.wait(cfg.ID).ExitCode)
	})
}

func TestCreationIdempotent(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		// The driver died before Nomad heard of the start, and is asked again.
		e.startDriver()
		e.start(cfg)
		must.Eq(t, 1, len(e.containers()))
	})
}

// containers lists what containerd holds.
func (e *env) containers() []string {
	e.t.Helper()
	found, err := e.driver.runtime.Find(context.Background(), map[string]string{labelNode: testNode})
	must.NoError(e.t, err)
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestStartStoppedContainer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("true"))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		// Nomad restarts in place: a new invocation of the same task.
		must.NoError(t, e.harness.DestroyTask(cfg.ID, false))
		again := cfg.Copy()
		again.ID = cfg.AllocID + "/web/" + uuid.Short()
		e.start(again)
		must.Eq(t, 0, e.wait(again.ID).ExitCode)
		must.Len(t, 1, e.containers())
	})
}

func TestStartN(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		var ids []string
		for range 3 {
			cfg := e.task(defaultTaskConfig("sleep", "1000"))
			e.start(cfg)
			ids = append(ids, cfg.ID)
		}
		for _, id := range ids {
			must.NoError(t, e.harness.DestroyTask(id, true))
		}
		must.Len(t, 0, e.containers())
	})
}

func TestMissingCommandLeavesNothing(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("/no/such/program"))
		_, _, err := e.harness.StartTask(cfg)
		must.ErrorContains(t, err, "/no/such/program")
		must.Len(t, 0, e.containers())
		must.ErrorIs(t, e.driver.DestroyTask(cfg.ID, true), drivers.ErrTaskNotFound)
	})
}

func TestDestroyRunningNeedsForce(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		must.ErrorContains(t, e.harness.DestroyTask(cfg.ID, false), "needs force")
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
	})
}

func TestInspectTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
		must.NotEq(t, "", status.DriverAttributes["container_id"])
		must.NoError(t, e.harness.StopTask(cfg.ID, 0, "SIGKILL"))
		status, err = e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateExited, status.State)
		must.Eq(t, 137, status.ExitResult.ExitCode)
		must.False(t, status.CompletedAt.IsZero())
	})
}

func TestImageCommandAndArgs(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig(""))
		must.Eq(t, "from the image\n", out)
		config := defaultTaskConfig("")
		config.Entrypoint, config.Args = []string{"echo", "a"}, []string{"b"}
		out, _ = e.run(config)
		must.Eq(t, "a b\n", out)
	})
}

func TestOOMKilled(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		_, result := e.run(defaultTaskConfig("tail", "/dev/zero"))
		must.True(t, result.OOMKilled)
		must.Eq(t, 137, result.ExitCode)
	})
}

func TestStartWaitAllocDir(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
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

func TestMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		host := filepath.Join(e.containerd.dir, "host")
		must.NoError(t, os.MkdirAll(host, 0o755))
		config := defaultTaskConfig("sh", "-c", `echo hi > /bind/f; echo no > /ro/f || echo read-only; cat /proc/mounts; cat /rel/r`)
		config.Mounts = []spec.MountConfig{
			{Type: "bind", Source: host, Target: "/bind", Options: []string{"rbind", "rw"}},
			{Type: "bind", Source: host, Target: "/ro", ReadOnly: true},
			{Type: "tmpfs", Target: "/scratch", Size: "1M"},
			{Type: "volume", Source: "local/sub", Target: "/rel"},
		}
		cfg := e.task(config)
		must.NoError(t, os.MkdirAll(filepath.Join(cfg.TaskDir().LocalDir, "sub"), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "sub", "r"), []byte("relative\n"), 0o644))
		e.start(cfg)
		e.wait(cfg.ID)
		out := e.logs(cfg, "stdout")
		must.StrContains(t, out, "read-only")
		must.StrContains(t, out, "relative")
		must.StrContains(t, out, "tmpfs /scratch tmpfs rw,nosuid,nodev")
		must.StrContains(t, out, "size=1024k")
	})
}

func TestVolumesDisabled(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		disabled := newEnv(t, e.containerd, func(c *Config) { c.Volumes.Enabled = false })
		limited := newEnv(t, e.containerd, func(c *Config) { c.Volumes.AllowPaths = []string{"/srv"} })
		config := defaultTaskConfig("true")
		config.Mounts = []spec.MountConfig{{Type: "bind", Source: "/etc", Target: "/e"}}
		_, _, err := disabled.harness.StartTask(disabled.quietTask(config))
		must.ErrorContains(t, err, "volumes are disabled")
		_, _, err = limited.harness.StartTask(limited.quietTask(config))
		must.ErrorContains(t, err, `allowed are ["/srv"]`)
	})
}

func TestReadonlyRootfsAndSecurityDefaults(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", `touch /x || echo ro; cat /proc/self/status; ls /proc/kcore; dd if=/proc/kcore count=1 2>&1 | head -1`)
		config.ReadonlyRootfs = true
		out, _ := e.run(config)
		must.StrContains(t, out, "ro\n")
		must.StrContains(t, out, "NoNewPrivs:\t1")
		must.StrContains(t, out, "Seccomp:\t2")
		// The thirteen of Nomad's list: no NET_RAW (bit 13), no SYS_ADMIN (21).
		must.StrContains(t, out, "CapBnd:\t00000000a80405fb")
		must.StrContains(t, out, "CapEff:\t00000000a80405fb")
	})
}

func TestCapabilities(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/proc/self/status")
		config.CapDrop = []string{"all"}
		out, _ := e.run(config)
		must.StrContains(t, out, "CapBnd:\t0000000000000000")

		config = defaultTaskConfig("true")
		config.CapAdd = []string{"sys_admin"}
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "CAP_SYS_ADMIN is not allowed")

		wide := newEnv(t, e.containerd, func(c *Config) { c.AllowCaps = []string{"all"} })
		config = defaultTaskConfig("cat", "/proc/self/status")
		config.CapDrop, config.CapAdd = []string{"all"}, []string{"net_raw"}
		out, _ = wide.run(config)
		must.StrContains(t, out, "CapEff:\t0000000000002000")
	})
}

func TestPrivileged(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/proc/self/status")
		config.Privileged = true
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "has not set allow_privileged")

		allowed := newEnv(t, e.containerd, func(c *Config) { c.AllowPrivileged = true })
		out, result := allowed.run(config)
		must.Eq(t, 0, result.ExitCode)
		must.StrContains(t, out, "Seccomp:\t0")
		must.StrContains(t, out, "NoNewPrivs:\t0")
	})
}

func TestUserAndGroupAdd(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "id; cat /proc/self/status")
		config.GroupAdd = []string{"extra"}
		out, _ := e.run(config, func(cfg *drivers.TaskConfig) { cfg.User = "app" })
		must.StrContains(t, out, "uid=1000(app) gid=1000(app)")
		must.StrContains(t, out, "77(extra)")
		must.StrContains(t, out, "44(video)")
		must.StrContains(t, out, "CapEff:\t0000000000000000")
		out, _ = e.run(defaultTaskConfig("id"), func(cfg *drivers.TaskConfig) { cfg.User = "12:34" })
		must.StrContains(t, out, "uid=12 gid=34")
	})
}

func TestLimits(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", `ulimit -n; cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory/memory.soft_limit_in_bytes /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpuset/cpuset.cpus /proc/self/oom_score_adj /proc/sys/net/core/somaxconn; stat -f -c %b /dev/shm; stat -f -c %S /dev/shm`)
		config.Mounts = []spec.MountConfig{{Type: "bind", Source: "/sys/fs/cgroup", Target: "/sys/fs/cgroup", ReadOnly: true}}
		config.PidsLimit, config.CPUHardLimit, config.CPUSetCPUs, config.OOMScoreAdj = 33, true, "0", 7
		config.Ulimit = []map[string]string{{"nofile": "2048:4096"}}
		config.Sysctl = []map[string]string{{"net.core.somaxconn": "777"}}
		config.MemorySwap, config.ShmSize = "16M", "8M"
		// The container sees the host's hierarchy here, so its own group is named.
		config.Args[1] = strings.NewReplacer("/pids.max", "$G/pids.max", "/memory.", "$G/memory.", "/cpu.", "$G/cpu.", "/cpuset.cpus", "$G/cpuset.cpus").Replace(config.Args[1])
		config.Args[1] = `G=$(grep -m1 ':memory:' /proc/self/cgroup); G=${G##*:}; ` + config.Args[1]
		out, result := e.run(config, func(cfg *drivers.TaskConfig) { cfg.Resources.NomadResources.Memory.MemoryMaxMB = 256 })
		must.Eq(t, 0, result.ExitCode, must.Sprint(out))
		must.Eq(t, []string{"2048", "33", "268435456", "134217728", "285212672", "20000", "100", "0", "7", "777", "2048", "4096"}, lines(out))
	})
}

func TestHostnameAndHosts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
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

func TestDNS(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		for _, dns := range []*drivers.DNSConfig{nil, {Servers: []string{"8.8.8.8"}, Searches: []string{"example.test"}, Options: []string{"ndots:1"}}} {
			cfg := e.task(defaultTaskConfig("sleep", "1000"), func(cfg *drivers.TaskConfig) { cfg.DNS = dns })
			e.start(cfg)
			dtestutil.TestTaskDNSConfig(t, e.harness, cfg.ID, dns)
		}
	})
}

func TestExecTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, 10*time.Second)
		must.NoError(t, err)
		must.Eq(t, "out\n", string(result.Stdout))
		must.Eq(t, "err\n", string(result.Stderr))
		must.Eq(t, 3, result.ExitResult.ExitCode)
		_, err = e.harness.ExecTask(cfg.ID, []string{"sleep", "1000"}, 300*time.Millisecond)
		must.ErrorContains(t, err, "deadline exceeded")
		_, err = e.harness.ExecTask(cfg.ID, []string{"/no/such"}, 10*time.Second)
		must.ErrorContains(t, err, "/no/such")
		result, err = e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "ls /proc"}, 10*time.Second)
		must.NoError(t, err)
		must.StrNotContains(t, string(result.Stdout), "\n1000\n")
	})
}

func TestExecStreaming(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		dtestutil.ExecTaskStreamingConformanceTests(t, e.harness, cfg.ID)
	})
}

func TestTTY(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "[ -t 1 ] && echo terminal")
		config.TTY = true
		out, _ := e.run(config)
		must.Eq(t, "terminal\r\n", out)
	})
}

func TestStats(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", "dd if=/dev/zero of=/tmp/f bs=1M count=8 2>/dev/null; while true; do :; done"))
		e.start(cfg)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ch, err := e.harness.TaskStats(ctx, cfg.ID, 200*time.Millisecond)
		must.NoError(t, err)
		for usage := range ch {
			cpu, memory := usage.ResourceUsage.CpuStats, usage.ResourceUsage.MemoryStats
			if cpu.Percent > 20 && cpu.TotalTicks > 0 && memory.Cache >= 8<<20 && memory.RSS > 0 && memory.Usage >= memory.RSS && memory.MaxUsage >= memory.Usage {
				return
			}
		}
		t.Fatal("no sample showed a busy task")
	})
}

func TestFingerprintHealth(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		ch, err := e.driver.Fingerprint(ctx)
		must.NoError(t, err)
		must.Eq(t, drivers.HealthStateHealthy, (<-ch).Health)
		e.containerd.kill()
		must.Eq(t, drivers.HealthStateUnhealthy, (<-ch).Health)
		e.containerd.start()
		must.Eq(t, drivers.HealthStateHealthy, (<-ch).Health)
	})
}

func TestLogCollectionDisabled(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "seq 1 100000; exit 4"), func(cfg *drivers.TaskConfig) {
			cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
		})
		e.start(cfg)
		must.Eq(t, 4, e.wait(cfg.ID).ExitCode)
	})
}

func TestMemoryMaxWithoutLimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", `G=$(grep -m1 ':memory:' /proc/self/cgroup); cat /c${G##*:}/memory.limit_in_bytes`)
		config.Mounts = []spec.MountConfig{{Type: "bind", Source: "/sys/fs/cgroup/memory", Target: "/c", ReadOnly: true}}
		out, _ := e.run(config, func(cfg *drivers.TaskConfig) { cfg.Resources.NomadResources.Memory.MemoryMaxMB = -1 })
		must.Eq(t, "9223372036854771712\n", out)
	})
}

func TestExecSessionsEndWithTheDriver(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		handle := e.start(cfg)
		config := defaultTaskConfig("sleep", "1000")
		e.victim(orders{Config: e.config, Task: cfg, Driver: config, Exec: []string{"sleep", "4711"}, Failpoint: "exec"}, 0)
		e.restart()
		must.NoError(t, e.harness.RecoverTask(handle))
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "cat /proc/[0-9]*/cmdline"}, callTimeout)
		must.NoError(t, err)
		must.StrNotContains(t, string(result.Stdout), "4711")
		pipes, err := os.ReadDir(fifoDir(e.config))
		if err == nil {
			must.Len(t, 0, pipes)
		}
	})
}
