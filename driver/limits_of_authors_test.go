// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// TestWhatTheOperatorHasNotAllowed: each is an author's own choice elsewhere.
func TestWhatTheOperatorHasNotAllowed(t *testing.T) {
	var block config.Config
	parse(t, config.Schema, ``, &block)
	settings, err := block.Parse()
	must.NoError(t, err)
	for says, change := range map[string]func(*taskconfig.Config){
		"no_new_privileges":  func(c *taskconfig.Config) { c.NoNewPrivileges = false },
		"seccomp":            func(c *taskconfig.Config) { c.Seccomp = false },
		"seccomp_profile":    func(c *taskconfig.Config) { c.SeccompProfile = "local/all-allowed.json" },
		"apparmor_profile":   func(c *taskconfig.Config) { c.AppArmor = "unconfined" },
		"selinux_label":      func(c *taskconfig.Config) { c.SELinuxLabel = "system_u:system_r:spc_t:s0" },
		"snapshotter":        func(c *taskconfig.Config) { c.Snapshotter = "native" },
		"pids_limit":         func(c *taskconfig.Config) { c.PidsLimit = -1 },
		"max_swap":           func(c *taskconfig.Config) { c.MemorySwap = "1M" },
		"cgroupns_mode":      func(c *taskconfig.Config) { c.CgroupNSMode = "host" },
		"rtprio":             func(c *taskconfig.Config) { c.Ulimit = []map[string]string{{"rtprio": "99"}} },
		"is above the 16384": func(c *taskconfig.Config) { c.PidsLimit = 16385 },
	} {
		c := defaultTaskConfig("true")
		change(&c)
		must.ErrorContains(t, c.Check(settings.Policy), says)
	}
	block.AllowUnconfined, block.AllowSnapshotters, block.PidsLimit = true, []string{"nat*"}, 0
	block.AllowPrivileged, block.MaxSwap, block.AllowCaps = true, "1M", []string{"all"}
	settings, err = block.Parse()
	must.NoError(t, err)
	c := defaultTaskConfig("true")
	c.Seccomp, c.NoNewPrivileges, c.AppArmor, c.Snapshotter, c.PidsLimit = false, false, "unconfined", "native", -1
	c.MemorySwap, c.CgroupNSMode, c.Ulimit = "1M", "host", []map[string]string{{"rtprio": "99"}}
	must.NoError(t, c.Check(settings.Policy))
}

// TestAForkBombIsHeld by the limit that a task has which sets none.
func TestAForkBombIsHeld(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		limited := e.with(func(c *config.Config) { c.PidsLimit = 20 })
		out, _ := limited.run(defaultTaskConfig("sh", "-c", "for i in $(seq 60); do sleep 5 & done 2>&1; ls -d /proc/[0-9]* | grep -c ."))
		must.StrContains(t, out, "fork")
	})
}

// TestExecOutputIsBounded: its size is the author's choice, the memory is ours.
func TestExecOutputIsBounded(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		result, err := e.driver.ExecTask(cfg.ID, []string{"sh", "-c", "head -c 100000000 /dev/zero; echo done >&2"}, time.Minute)
		must.NoError(t, err)
		must.Eq(t, 0, result.ExitResult.ExitCode)
		must.StrHasSuffix(t, "\n[98951424 more bytes]\n", string(result.Stdout))
		must.Less(t, maxExecOutput+100, cap(result.Stdout)/2)
		must.Eq(t, "done\n", string(result.Stderr))
	})
}

// bigImage has a configuration that no image needs.
func bigImage(t *testing.T, name string) []byte {
	t.Helper()
	var archive bytes.Buffer
	must.NoError(t, testimage.Build(&archive, name, map[string]testimage.File{"/etc/image": {Content: []byte(name)}}, ispec.ImageConfig{
		Cmd: []string{"/true"}, Labels: map[string]string{"big": strings.Repeat("x", 9<<20)},
	}))
	return archive.Bytes()
}

// TestGiantImageConfigs: they would be read into the driver's memory.
func TestGiantImageConfigs(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		refused := func(config taskconfig.Config, write func(dir string)) {
			t.Helper()
			cfg := e.quietTask(config)
			write(cfg.TaskDir().LocalDir)
			_, _, err := e.driver.StartTask(cfg)
			must.ErrorContains(t, err, "and 524288 are allowed")
			must.False(t, structs.IsRecoverable(err))
			must.Eq(t, nil, e.leftovers())
		}
		e.containerd.importImage(t, bigImage(t, "example.test/big:1"))
		refused(imageConfig("example.test/big:1"), func(string) {})
		refused(imageConfig("local/big.tar"), func(dir string) {
			must.NoError(t, os.WriteFile(filepath.Join(dir, "big.tar"), bigImage(t, "example.test/big:2"), 0o644))
		})
		r := startRegistry(t, false, false)
		refused(imageConfig(r.pushArchive(t, "big:1", bigImage(t, r.addr+"/big:1"))), func(string) {})
	})
}

// TestGiantImages: an archive may be a file that is all hole, or grow while it is read,
// and containerd keeps what it was sent of it.
func TestGiantImages(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		refused := func(config taskconfig.Config, write func(path string)) {
			t.Helper()
			cfg := e.quietTask(config)
			write(filepath.Join(cfg.TaskDir().LocalDir, "big.tar"))
			_, _, err := e.driver.StartTask(cfg)
			must.ErrorContains(t, err, "that this node's operator allows (max_image_size)")
			must.False(t, structs.IsRecoverable(err))
			must.Eq(t, nil, e.leftovers())
		}
		refused(imageConfig("local/big.tar"), func(path string) {
			f, err := os.Create(path)
			must.NoError(t, err)
			must.NoError(t, tar.NewWriter(f).WriteHeader(&tar.Header{Name: "blobs/sha256/big", Size: 1 << 42, Mode: 0o644}))
			must.NoError(t, f.Truncate(1<<42))
			must.NoError(t, f.Close())
		})
		small := e.with(func(c *config.Config) { c.MaxImageSize = "1M" })
		e.driver, e.harness = small.driver, small.harness
		ref := startRegistry(t, false, false).push(t, "box:1")
		refused(imageConfig(ref), func(string) {})
		refused(imageConfig("local/big.tar"), func(path string) {
			must.NoError(t, os.WriteFile(path, testArchive(t), 0o644))
		})
	})
}

// TestAPrivateImageIsForThoseWhoHaveALogin: the registry is asked who else may use
// what one job pulled with a login of its own.
func TestAPrivateImageIsForThoseWhoHaveALogin(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		config := imageConfig(r.push(t, "box:1"))
		with := config
		with.Auth = taskconfig.Auth{Username: registryUser, Password: registryPassword}
		out, _ := e.run(with)
		must.Eq(t, "pulled\n", out)
		for _, auth := range []taskconfig.Auth{{}, {Username: registryUser, Password: "wrong"}} {
			config.Auth = auth
			_, _, err := e.driver.StartTask(e.quietTask(config))
			must.ErrorContains(t, err, "denies access")
		}
		out, _ = e.run(with)
		must.Eq(t, "pulled\n", out)
	})
}

// TestForcePullOfAnImageOfTheOperators does not make it ours, to be collected.
func TestForcePullOfAnImageOfTheOperators(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		ref := r.push(t, "box:1")
		var archive bytes.Buffer
		must.NoError(t, buildTestImage(&archive, ref))
		e.containerd.importImage(t, archive.Bytes())
		config := imageConfig(ref)
		config.ForcePull = true
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
		e.tidy(time.Hour)
		must.True(t, e.holds(ref), must.Sprint("an image of the operator's was removed"))
	})
}

// TestAnImageOfEverybodysStaysSo when it is pulled with a login: jobs without one
// would have to ask a registry that refuses them.
func TestAnImageOfEverybodysStaysSo(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		ref := r.push(t, "box:1")
		var archive bytes.Buffer
		must.NoError(t, buildTestImage(&archive, ref))
		e.containerd.importImage(t, archive.Bytes())
		config := imageConfig(ref)
		with := config
		with.ForcePull, with.Auth = true, taskconfig.Auth{Username: registryUser, Password: registryPassword}
		for _, c := range []taskconfig.Config{config, with, config} {
			out, _ := e.run(c)
			must.Eq(t, "pulled\n", out)
		}
	})
}

// TestSecretsHoldSoManyFiles: a file takes the kernel's memory without any content, and
// the kernel stops counting it when the task that made it has ended.
func TestSecretsHoldSoManyFiles(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "d=$(mktemp -d /secrets/dXXXXXX); for i in $(seq 1500); do : > $d/$i; done"))
		secrets := cfg.TaskDir().SecretsDir
		_ = unix.Unmount(secrets, unix.MNT_DETACH)
		must.NoError(t, unix.Mount("tmpfs", secrets, "tmpfs", unix.MS_NOEXEC, "size=1m"))
		for i := range 3 {
			again := cfg.Copy()
			again.ID += itoa(i)
			e.runPrepared(again)
		}
		files, err := filepath.Glob(filepath.Join(secrets, "*", "*"))
		must.NoError(t, err)
		must.Between(t, 3000, len(files), maxSecrets)
		var is unix.Statfs_t
		must.NoError(t, unix.Statfs(secrets, &is))
		must.Eq(t, 1<<20, is.Blocks*uint64(is.Bsize), must.Sprint("its size changed"))
	})
}

// TestSharedMemoryIsTheTasks: what others leave in it is within the limit of the task
// that offers it, and gone with the last who has it.
func TestSharedMemoryIsTheTasks(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		owner := defaultTaskConfig("sleep", "1000")
		owner.IPCMode, owner.ShmSize = "shareable", "100G"
		_, _, err := e.driver.StartTask(e.quietTask(owner))
		must.ErrorContains(t, err, "shm_size: 102400 MiB that other tasks share are taken from the task's memory, which is 128 MiB")
		must.Eq(t, nil, e.leftovers())

		owner.ShmSize = "32M"
		must.Eq(t, []string{itoa(96 << 20)}, e.groupFiles(owner, unchanged, fileMemory))
		ownerCfg := e.quietTask(owner)
		e.start(ownerCfg)
		// Files take the kernel's memory without any content.
		for range 2 {
			writer := defaultTaskConfig("sh", "-c", "for i in $(seq 2500); do : > /dev/shm/$$-$i; done; sleep 0")
			writer.IPCMode = "task:web"
			e.run(writer, inAllocOf(ownerCfg, "side"))
		}
		files, err := os.ReadDir(sharedMemory(e.driver.settings).Of(e.containers()[0]))
		must.NoError(t, err)
		must.Between(t, 1000, len(files), 2048)
		for _, f := range files {
			must.NoError(t, os.Remove(filepath.Join(sharedMemory(e.driver.settings).Of(e.containers()[0]), f.Name())))
		}
		// Each writer ends and is started again, and leaves as much as it can.
		for i := range 4 {
			writer := defaultTaskConfig("sh", "-c", "dd if=/dev/zero of=/dev/shm/left"+itoa(i)+" bs=1M count=20; stat -f -c '%b %f' /dev/shm")
			writer.IPCMode = "task:web"
			out, _ := e.run(writer, inAllocOf(ownerCfg, "side"))
			must.StrHasPrefix(t, "8192 ", out, must.Sprint("it is larger than its size"))
		}
		e.end(ownerCfg)
		mounts, err := os.ReadFile("/proc/self/mounts")
		must.NoError(t, err)
		must.StrNotContains(t, string(mounts), e.config.StateDir+"/shm")
	})
}

// TestSignalsAndStatisticsDoNotAddUp while containerd does not answer: each waits, and
// leaves nothing when it is over. Other tests have goroutines too, so it runs alone.
func TestSignalsAndStatisticsDoNotAddUp(t *testing.T) {
	for name, binary := range containerdBinaries(t) {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, startContainerd(t, binary), nil)
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", "trap : USR1; touch /local/ready; while true; do sleep 0.05; done"))
			e.start(cfg)
			e.waitUntilReady(cfg)
			endHarness(e.harness) // its own connections come and go
			before := goleak.IgnoreCurrent()
			server := e.containerd.cmd.cmd.Process
			must.NoError(t, server.Signal(syscall.SIGSTOP))
			defer func() { _ = server.Signal(syscall.SIGCONT) }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			signaled := make([]error, 200)
			var over sync.WaitGroup
			for i := range signaled {
				over.Go(func() { signaled[i] = e.driver.SignalTask(cfg.ID, "SIGUSR1") })
				stats, err := e.driver.TaskStats(ctx, cfg.ID, time.Millisecond)
				must.NoError(t, err)
				over.Go(func() {
					for range stats {
					}
				})
			}
			must.Error(t, e.driver.SignalTask(cfg.ID, "SIGNONSENSE"))
			must.NoError(t, server.Signal(syscall.SIGCONT))
			cancel()
			over.Wait()
			must.NoError(t, errors.Join(signaled...))
			noGoroutineStays(t, before, goleak.IgnoreAnyFunction("github.com/containerd/containerd/v2/client.(*task).Wait.func1")) // the task itself is watched
		})
	}
}
