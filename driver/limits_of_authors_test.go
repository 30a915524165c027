package driver

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// TestWhatTheOperatorHasNotAllowed: each is an author's own choice elsewhere.
func TestWhatTheOperatorHasNotAllowed(t *testing.T) {
	var config Config
	parse(t, configSpec, ``, &config)
	settings, err := config.parse()
	must.NoError(t, err)
	for says, change := range map[string]func(*spec.Config){
		"no_new_privileges":  func(c *spec.Config) { c.NoNewPrivileges = false },
		"seccomp":            func(c *spec.Config) { c.Seccomp = false },
		"seccomp_profile":    func(c *spec.Config) { c.SeccompProfile = "local/all-allowed.json" },
		"apparmor_profile":   func(c *spec.Config) { c.AppArmor = "unconfined" },
		"selinux_label":      func(c *spec.Config) { c.SELinuxLabel = "system_u:system_r:spc_t:s0" },
		"snapshotter":        func(c *spec.Config) { c.Snapshotter = "native" },
		"pids_limit":         func(c *spec.Config) { c.PidsLimit = -1 },
		"is above the 16384": func(c *spec.Config) { c.PidsLimit = 16385 },
	} {
		c := defaultTaskConfig("true")
		change(&c)
		must.ErrorContains(t, c.Check(settings.policy), says)
	}
	config.AllowUnconfined, config.AllowSnapshotters, config.PidsLimit = true, []string{"nat*"}, 0
	settings, err = config.parse()
	must.NoError(t, err)
	c := defaultTaskConfig("true")
	c.Seccomp, c.NoNewPrivileges, c.AppArmor, c.Snapshotter, c.PidsLimit = false, false, "unconfined", "native", -1
	must.NoError(t, c.Check(settings.policy))
}

// TestAForkBombIsHeld by the limit that a task has which sets none.
func TestAForkBombIsHeld(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		limited := e.with(func(c *Config) { c.PidsLimit = 20 })
		out, _ := limited.run(defaultTaskConfig("sh", "-c", "for i in $(seq 60); do sleep 5 & done 2>&1; ls -d /proc/[0-9]* | grep -c ."))
		must.StrContains(t, out, "fork")
	})
}

func TestLabelsUponWhichOthersAct(t *testing.T) {
	for _, key := range []string{"nerdctl/state-dir", "io.containerd.image.config.stop-signal", "containerd.io/gc.root", labelNode, "io.kubernetes.pod.name"} {
		_, err := containerLabels(nil, map[string]string{key: "/"})
		must.ErrorContains(t, err, "reserved", must.Sprint(key))
	}
}

// TestExecOutputIsBounded: its size is the author's choice, the memory is ours.
func TestExecOutputIsBounded(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
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
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		refused := func(config spec.Config, write func(dir string)) {
			t.Helper()
			cfg := e.quietTask(config)
			write(cfg.TaskDir().LocalDir)
			_, _, err := e.driver.StartTask(cfg)
			must.ErrorContains(t, err, "and 8388608 are allowed")
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

// TestAPrivateImageIsForThoseWhoHaveALogin: the registry is asked who else may use
// what one job pulled with a login of its own.
func TestAPrivateImageIsForThoseWhoHaveALogin(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		config := imageConfig(r.push(t, "box:1"))
		with := config
		with.Auth = spec.Auth{Username: registryUser, Password: registryPassword}
		out, _ := e.run(with)
		must.Eq(t, "pulled\n", out)
		for _, auth := range []spec.Auth{{}, {Username: registryUser, Password: "wrong"}} {
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
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
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

// TestSharedMemoryIsTheTasks: what others leave in it is within the limit of the task
// that offers it, and gone with the last who has it.
func TestSharedMemoryIsTheTasks(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		owner := defaultTaskConfig("sleep", "1000")
		owner.IPCMode, owner.ShmSize = "shareable", "100G"
		_, _, err := e.driver.StartTask(e.quietTask(owner))
		must.ErrorContains(t, err, "shm_size: 102400 MiB that other tasks share are taken from the task's memory, which is 128 MiB")
		must.Eq(t, nil, e.leftovers())

		owner.ShmSize = "32M"
		must.Eq(t, []string{itoa(96 << 20)}, e.groupFiles(owner, unchanged, fileMemory))
		ownerCfg := e.quietTask(owner)
		e.start(ownerCfg)
		// Each writer ends and is started again, and leaves as much as it can.
		for i := range 4 {
			writer := defaultTaskConfig("sh", "-c", "dd if=/dev/zero of=/dev/shm/left"+itoa(i)+" bs=1M count=20; stat -f -c '%b %f' /dev/shm")
			writer.IPCMode = "task:web"
			out, _ := e.run(writer, inAllocOf(ownerCfg, "side"))
			must.StrHasPrefix(t, "8192 ", out, must.Sprint("it is larger than its size"))
		}
		must.NoError(t, e.driver.DestroyTask(ownerCfg.ID, true))
		mounts, err := os.ReadFile("/proc/self/mounts")
		must.NoError(t, err)
		must.StrNotContains(t, string(mounts), e.config.StateDir+"/shm")
	})
}
