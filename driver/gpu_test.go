// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
	gpuB = "GPU-bbbbbbbb-0000-0000-0000-000000000002"
)

// node plays the device plugin: GPUs with device nodes of their own, CDI specs
// and state files.
type node struct {
	e   *env
	dir *statedir.Dir
}

// newNode makes GPUs A and B, 16 slices of 1 GiB each under MPS, as character
// devices of NVIDIA's major number in a private directory. Opening one that is
// allowed fails with ENXIO, since no driver is behind it, and one that is not
// allowed with EPERM.
func newNode(e *env) *node {
	e.t.Helper()
	boot, err := statedir.BootID()
	must.NoError(e.t, err)
	dir, err := statedir.Open(e.config.StateDir, boot)
	must.NoError(e.t, err)
	n := &node{e: e, dir: dir}
	for i := range 2 {
		path := n.deviceNode(i)
		must.NoError(e.t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(i)))))
		must.NoError(e.t, os.Chmod(path, 0o666))
	}
	newNodeFiles(n)
	return n
}

func (n *node) deviceNode(i int) string {
	return filepath.Join(n.e.dir, fmt.Sprintf("nvidia%d", i))
}

// newNodeFiles writes what a device plugin writes when it starts.
func newNodeFiles(n *node) {
	n.e.t.Helper()
	devices := ""
	for i, uuid := range []string{gpuA, gpuB} {
		devices += fmt.Sprintf(`{"name":%q,"containerEdits":{"deviceNodes":[{"path":"/dev/nvidia%d","hostPath":%q}]}},`, uuid, i, n.deviceNode(i))
		n.publish(uuid, func(*gpu.GPUState) {})
	}
	text := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"nomad-gpu.sim/gpu","containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=all","FROM_CDI=yes"]},"devices":[%s]}`, strings.TrimSuffix(devices, ","))
	must.NoError(n.e.t, os.MkdirAll(n.dir.CDIDir(), 0o700))
	must.NoError(n.e.t, os.WriteFile(filepath.Join(n.dir.CDIDir(), "sim.json"), []byte(text), 0o644))
}

func (n *node) publish(uuid string, change func(*gpu.GPUState)) {
	n.e.t.Helper()
	mps := filepath.Join(n.e.dir, "mps", uuid)
	for _, sub := range []string{"pipe", "log", "shm"} {
		must.NoError(n.e.t, os.MkdirAll(filepath.Join(mps, sub), 0o755))
	}
	must.NoError(n.e.t, os.WriteFile(filepath.Join(mps, "pipe", "control"), nil, 0o666))
	must.NoError(n.e.t, os.WriteFile(filepath.Join(mps, "shm", "of-daemon"), nil, 0o666))
	state := gpu.GPUState{
		UUID: uuid, Vendor: "nvidia", Model: "Sim", Mode: gpu.ModeSlice, Sharing: gpu.SharingMPS,
		MemoryMiB: 16384, SliceMemoryMiB: 1024, Slices: 16, CDIDevice: "nomad-gpu.sim/gpu=" + uuid,
		MPS: &gpu.MPSState{PipeDir: mps + "/pipe", LogDir: mps + "/log", ShmDir: mps + "/shm", Ready: true, Generation: 1},
	}
	change(&state)
	must.NoError(n.e.t, n.dir.WriteGPU(state))
}

// reserve gives a task slices, as Nomad's device hook would.
func reserve(uuid string, slices ...int) func(*drivers.TaskConfig) {
	milli := int64(len(slices)) * 1000 / 16
	return reserveDevice(gpu.ReservedDevice{UUID: uuid, Mode: gpu.ModeSlice, Slices: slices, Of: 16, MemoryMiB: int64(len(slices)) * 1024, Milli: milli, BurstMilli: 900})
}

func reserveDevice(d gpu.ReservedDevice) func(*drivers.TaskConfig) {
	return func(cfg *drivers.TaskConfig) {
		r := gpu.Reservation{Version: gpu.ReservationVersion, Vendor: "nvidia", Devices: []gpu.ReservedDevice{d}}
		value, err := r.EnvValue()
		if err != nil {
			panic(err)
		}
		if cfg.DeviceEnv == nil {
			cfg.DeviceEnv = map[string]string{}
		}
		cfg.DeviceEnv[r.EnvKey()] = value
		cfg.Env[r.EnvKey()] = value
	}
}

func allSlices() []int {
	all := make([]int, 16)
	for i := range all {
		all[i] = i
	}
	return all
}

// look prints what a GPU program would see.
const look = `env; for d in /dev/nvidia0 /dev/nvidia1; do if [ -e $d ]; then echo "$d $( (: < $d) 2>&1)"; else echo "$d absent"; fi; done
mknod /tmp/n0 c 195 0; mknod /tmp/n1 c 195 1; for d in /tmp/n0 /tmp/n1; do echo "$d $( (: < $d) 2>&1)"; done
ls /run/nomad-gpu/mps/pipe /dev/shm 2>/dev/null; true`

func TestGPUSliceSeesItsShareOnly(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		out, result := e.run(defaultTaskConfig("sh", "-c", look), reserve(gpuA, 0, 1, 2, 3), func(cfg *drivers.TaskConfig) {
			cfg.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=99999M"
			cfg.Env["NVIDIA_VISIBLE_DEVICES"] = "all"
			cfg.Env["CUDA_VISIBLE_DEVICES"] = "0,1"
			cfg.Env["MINE"] = "yes"
		})
		must.Eq(t, 0, result.ExitCode, must.Sprint(out))
		got := lines(out)
		for _, want := range []string{
			"CUDA_MPS_PIPE_DIRECTORY=/run/nomad-gpu/mps/pipe", "CUDA_MPS_LOG_DIRECTORY=/run/nomad-gpu/mps/log",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
			"NVIDIA_VISIBLE_DEVICES=void", "MINE=yes", "FROM_IMAGE=yes", "FROM_CDI=yes", "/dev/nvidia1 absent", "control", "of-daemon",
		} {
			must.SliceContains(t, got, want)
		}
		must.StrNotContains(t, out, "CUDA_VISIBLE_DEVICES")
		must.StrNotContains(t, out, "NOMAD_GPU_")
		must.StrContains(t, lineOf(got, "/dev/nvidia0 "), "No such device")
		must.StrContains(t, lineOf(got, "/tmp/n0 "), "No such device")
		must.StrContains(t, lineOf(got, "/tmp/n1 "), "not permitted")

		leases, err := n.dir.Leases()
		must.NoError(t, err)
		must.Len(t, 1, leases)
		must.Eq(t, gpu.PhaseEnded, leases[0].Phase)
		must.Eq(t, []gpu.Holding{{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0, 1, 2, 3}, MPSGeneration: 1, Share: gpu.Share{MemoryMiB: 4096, GuaranteeMilli: 250, LimitMilli: 250}}}, leases[0].Holdings)
	})
}

func lineOf(lines []string, prefix string) string {
	for _, line := range lines {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	return ""
}

// Variables that would say which GPU a task has are the driver's, and what an author
// wrote of them is left out with a word.
func TestDroppedVariablesAreTold(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		told := gatherEvents(t, e)
		cfg := e.task(defaultTaskConfig("sh", "-c", "env; exec sleep 1000"), reserve(gpuA, 0), func(cfg *drivers.TaskConfig) {
			cfg.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_MPS_PIPE_DIRECTORY": "/elsewhere", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_API_KEY": "secret"}
		})
		// A task that writes none hears nothing of them.
		quiet := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1))
		e.start(quiet)
		e.start(cfg)
		eventually(t, "it is told", func() bool { return strings.Contains(told(cfg.ID), "left out") })
		must.StrContains(t, told(cfg.ID), "left out of the environment, since the driver alone says which GPU a task has: CUDA_MPS_PIPE_DIRECTORY, NVIDIA_VISIBLE_DEVICES\n")
		must.StrNotContains(t, told(quiet.ID), "left out")
		for _, line := range []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "NVIDIA_API_KEY=secret", "NVIDIA_VISIBLE_DEVICES=void"} {
			e.waitForLog(cfg, line)
		}
	})
}

// gatherEvents reads the driver's events as they come, and returns what reads them by task.
func gatherEvents(t *testing.T, e *env) func(taskID string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events, err := e.driver.TaskEvents(ctx)
	must.NoError(t, err)
	var mu sync.Mutex
	said := map[string]string{}
	go func() {
		for event := range events {
			mu.Lock()
			said[event.TaskID] += event.Message + "\n"
			mu.Unlock()
		}
	}()
	return func(taskID string) string {
		mu.Lock()
		defer mu.Unlock()
		return said[taskID]
	}
}

func TestGPUNone(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		out, _ := e.run(defaultTaskConfig("sh", "-c", look), func(cfg *drivers.TaskConfig) {
			cfg.Env["NOMAD_GPU_aaaaaaaa_0"] = `{"v":1}`
			cfg.Env["NVIDIA_VISIBLE_DEVICES"] = "all"
		})
		got := lines(out)
		must.SliceContains(t, got, "NVIDIA_VISIBLE_DEVICES=void")
		must.SliceContains(t, got, "/dev/nvidia0 absent")
		must.StrContains(t, lineOf(got, "/tmp/n0 "), "not permitted")
		must.StrNotContains(t, out, "NOMAD_GPU_")
	})
}

func TestGPUWholeBySlicesHasNoMPS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		out, _ := e.run(defaultTaskConfig("sh", "-c", look), reserve(gpuA, allSlices()...), reserve(gpuB, allSlices()...))
		must.StrNotContains(t, out, "CUDA_MPS")
		for _, device := range []string{"/dev/nvidia0 ", "/dev/nvidia1 "} {
			must.StrContains(t, lineOf(lines(out), device), "No such device")
		}
	})
}

func TestGPUErrors(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		withGPU := func(block string, memory string, compute, limit int64) *drivers.TaskConfig {
			config := defaultTaskConfig("true")
			config.GPU.Memory, config.GPU.Compute, config.GPU.ComputeLimit = memory, compute, limit
			if block == "none" {
				return e.quietTask(config)
			}
			return e.quietTask(config, reserve(gpuA, 0, 1))
		}
		meta := e.quietTask(defaultTaskConfig("true"), func(cfg *drivers.TaskConfig) { cfg.Env["NOMAD_META_gpu"] = "8G,0.5" })
		two := e.quietTask(defaultTaskConfig("true"), reserve(gpuA, 0), reserve(gpuB, 0))
		unknown := e.quietTask(defaultTaskConfig("true"), reserve("GPU-cccccccc", 0))
		for _, test := range []struct {
			name        string
			cfg         *drivers.TaskConfig
			says        string
			recoverable bool
		}{
			{"memory above the slices", withGPU("", "3G", 0, 0), "gpu.memory: 3G is more than the 2G", false},
			{"limit below guarantee", withGPU("", "", 500, 400), "gpu.compute_limit: 400 is below gpu.compute 500", false},
			{"limit above the burst", withGPU("", "", 500, 950), "above 900, the most that this node's operator allows", false},
			{"memory without unit", withGPU("", "3", 0, 0), "unit is missing", false},
			{"block without GPU", withGPU("none", "1G", 0, 0), "the task has no GPU", false},
			{"meta without device", meta, `meta { gpu = "8G,0.5" }`, false},
			{"parts of two GPUs", two, "can use that one GPU only", false},
			{"no state", unknown, "published no state", true},
		} {
			_, _, err := e.harness.StartTask(test.cfg)
			must.ErrorContains(t, err, test.says, must.Sprint(test.name))
			must.Eq(t, test.recoverable, structs.IsRecoverable(err), must.Sprint(test.name))
		}
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Ready = false })
		_, _, err := e.harness.StartTask(withGPU("", "", 0, 0))
		must.ErrorContains(t, err, "MPS daemon is not ready")
		must.True(t, structs.IsRecoverable(err))
		n.publish(gpuA, func(s *gpu.GPUState) {
			s.Faults = []gpu.Fault{{Code: "xid-79", Message: "fell off the bus", Action: "reboot"}}
		})
		_, _, err = e.harness.StartTask(withGPU("", "", 0, 0))
		must.ErrorContains(t, err, "fell off the bus; reboot")
	})
}

func TestGPUUnderHAMi(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		library := filepath.Join(e.dir, "libvgpu.so")
		must.NoError(t, os.WriteFile(library, []byte("stands in"), 0o755))
		n.publish(gpuA, func(s *gpu.GPUState) {
			s.Sharing, s.HAMi = gpu.SharingHAMi, &gpu.HAMiState{Library: library, LockDir: e.dir + "/mps"}
		})
		out, _ := e.run(defaultTaskConfig("cat", "/etc/ld.so.preload", "/run/nomad-gpu/hami/libvgpu.so", "/proc/self/environ"), reserve(gpuA, 0))
		must.StrContains(t, out, "/run/nomad-gpu/hami/libvgpu.so\nstands in")
		must.StrContains(t, out, "CUDA_DEVICE_MEMORY_LIMIT_0=1024m")
	})
}

func TestGPUGuaranteesAreHeld(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		config := defaultTaskConfig("sleep", "1000")
		config.GPU.Compute = 600
		first := e.quietTask(config, reserve(gpuA, 0))
		e.start(first)
		second := e.quietTask(config, reserve(gpuA, 1))
		_, _, err := e.harness.StartTask(second)
		must.ErrorContains(t, err, "0.6 of it is promised to other tasks; ask for at most 0.4 (compute = 400 in a gpu block). Nomad counts slices, not compute: it tries this GPU again")
		must.True(t, structs.IsRecoverable(err))
		e.end(first)
		e.start(second)
	})
}

func TestRecoverableSeesThroughJoins(t *testing.T) {
	if structs.IsRecoverable(recoverable(errors.Join(errors.New("plain")))) {
		t.Error("a plain error became recoverable")
	}
}

func TestHooksGetAnEnvironmentOfTheirOwn(t *testing.T) {
	hooks := &specs.Hooks{
		CreateContainer: []specs.Hook{{Path: "/hook"}, {Path: "/hook", Env: []string{"A=b"}}},
		Poststop:        []specs.Hook{{Path: "/hook"}},
	}
	setHookEnv(hooks)
	must.Eq(t, []string{hookPath}, hooks.CreateContainer[0].Env)
	must.Eq(t, []string{"A=b"}, hooks.CreateContainer[1].Env)
	must.Eq(t, []string{hookPath}, hooks.Poststop[0].Env)
	setHookEnv(nil)
}

func TestGPUsOfAnotherDevicePlugin(t *testing.T) {
	foreign := func(cfg *drivers.TaskConfig) {
		cfg.DeviceEnv = map[string]string{"NVIDIA_VISIBLE_DEVICES": gpuA + "," + gpuB}
	}
	cfg := &drivers.TaskConfig{Env: map[string]string{}}
	foreign(cfg)
	share, err := shareOf(cfg, defaultTaskConfig("true"), nil)
	must.NoError(t, err)
	must.Eq(t, []string{"nvidia.com/gpu=" + gpuA, "nvidia.com/gpu=" + gpuB}, share.Devices)
	config := defaultTaskConfig("true")
	config.GPU.Memory = "1G"
	_, err = shareOf(cfg, config, nil)
	must.ErrorContains(t, err, "needs slices of nomad-device-gpu")

	// So it is in a job that the placement service admitted, and with plugins that hand in
	// the nodes themselves; what the author says of GPUs gives none.
	cfg.Env[requestMeta] = "2"
	share, err = shareOf(cfg, defaultTaskConfig("true"), nil)
	must.NoError(t, err)
	must.Len(t, 2, share.Devices)
	cfg.DeviceEnv = map[string]string{"AMD_VISIBLE_DEVICES": "0"}
	share, err = shareOf(cfg, defaultTaskConfig("true"), nil)
	must.NoError(t, err)
	must.Eq(t, []string{"amd.com/gpu=0"}, share.Devices)
	cfg.DeviceEnv, cfg.Devices = nil, []*drivers.DeviceConfig{{TaskPath: "/dev/dri/renderD128", HostPath: "/dev/dri/renderD128", Permissions: "rw"}}
	share, err = shareOf(cfg, defaultTaskConfig("true"), nil)
	must.NoError(t, err)
	must.Len(t, 0, share.Devices)
	cfg.Devices, cfg.Env["NVIDIA_VISIBLE_DEVICES"] = []*drivers.DeviceConfig{{TaskPath: "/dev/ttyUSB0"}}, gpuA
	_, err = shareOf(cfg, defaultTaskConfig("true"), nil)
	must.ErrorContains(t, err, "was given none")
}
