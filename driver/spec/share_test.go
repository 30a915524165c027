// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

const (
	uuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
	uuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000002"
)

func state(uuid string, sharing gpu.Sharing) gpu.GPUState {
	return gpu.GPUState{
		UUID: uuid, Mode: gpu.ModeSlice, Sharing: sharing, MemoryMiB: 81559, SliceMemoryMiB: 1024, Slices: 79,
		CDIDevice: "nvidia.com/gpu=" + uuid,
		MPS:       &gpu.MPSState{PipeDir: "/mps/pipe", LogDir: "/mps/log", ShmDir: "/mps/shm", Ready: true},
		HAMi:      &gpu.HAMiState{Library: "/hami/libvgpu.so", LockDir: "/hami/lock"},
		Dmem:      "drm/0000:83:00.0/vram",
	}
}

// What the kernel is to hold stands in the control group of the task; without a region
// to hold it in no task starts.
func TestMemoryLimitsOfControlGroups(t *testing.T) {
	with := state(uuidA, gpu.SharingDmem)
	share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: with}, taskconfig.GPURequest{})
	if err != nil || share.unified()["dmem.max"] != "drm/0000:83:00.0/vram 8589934592" {
		t.Errorf("the control group gets %v, %v", share.unified(), err)
	}
	tighter, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: with}, taskconfig.GPURequest{MemoryMiB: 1024})
	if err != nil || tighter.unified()["dmem.max"] != "drm/0000:83:00.0/vram 1073741824" {
		t.Errorf("a tighter task's control group gets %v, %v", tighter.unified(), err)
	}
	whole, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 79)}, map[string]gpu.GPUState{uuidA: with}, taskconfig.GPURequest{})
	if err != nil || whole.unified() != nil {
		t.Errorf("a task with the whole GPU is limited: %v, %v", whole.unified(), err)
	}
	with.Dmem = ""
	var notReady *NotReadyError
	if _, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: with}, taskconfig.GPURequest{}); !errors.As(err, &notReady) {
		t.Errorf("a task without a limit starts: %v", err)
	}
}

func slicesOf(uuid string, count int) gpu.ReservedDevice {
	d := gpu.ReservedDevice{UUID: uuid, Mode: gpu.ModeSlice, Of: 79, MemoryMiB: int64(count) * 1024, Milli: int64(count) * 1000 / 79, BurstMilli: 900}
	for n := range count {
		d.Slices = append(d.Slices, n)
	}
	return d
}

func TestNewShare(t *testing.T) {
	whole := gpu.ReservedDevice{UUID: uuidA, Mode: gpu.ModeWhole}
	turn := gpu.ReservedDevice{UUID: uuidA, Mode: gpu.ModeShared, Slices: []int{2}, Of: 4, BurstMilli: 1000}
	mig := gpu.ReservedDevice{UUID: "MIG-1", Mode: gpu.ModeWhole}
	for _, test := range []struct {
		name    string
		devices []gpu.ReservedDevice
		sharing gpu.Sharing
		want    taskconfig.GPURequest
		share   gpu.Share
		env     string
	}{
		{"slices", []gpu.ReservedDevice{slicesOf(uuidA, 8)}, gpu.SharingMPS, taskconfig.GPURequest{}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 101, LimitMilli: 101},
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=11 CUDA_MPS_LOG_DIRECTORY=/run/nomad-gpu/mps/log CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M CUDA_MPS_PIPE_DIRECTORY=/run/nomad-gpu/mps/pipe NVIDIA_VISIBLE_DEVICES=void"},
		{"tighter, guarantee and limit", []gpu.ReservedDevice{slicesOf(uuidA, 8)}, gpu.SharingMPS, taskconfig.GPURequest{MemoryMiB: 7168, ComputeMilli: 500, ComputeLimitMilli: 800}, gpu.Share{MemoryMiB: 7168, GuaranteeMilli: 500, LimitMilli: 800},
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=80 CUDA_MPS_LOG_DIRECTORY=/run/nomad-gpu/mps/log CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M CUDA_MPS_PIPE_DIRECTORY=/run/nomad-gpu/mps/pipe NVIDIA_VISIBLE_DEVICES=void"},
		{"all slices are the whole GPU", []gpu.ReservedDevice{slicesOf(uuidA, 79)}, gpu.SharingMPS, taskconfig.GPURequest{}, gpu.Share{GuaranteeMilli: 1000}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"whole", []gpu.ReservedDevice{whole}, gpu.SharingNone, taskconfig.GPURequest{}, gpu.Share{GuaranteeMilli: 1000}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"whole with a memory cap that the watchdog holds", []gpu.ReservedDevice{whole}, gpu.SharingNone, taskconfig.GPURequest{MemoryMiB: 1024}, gpu.Share{MemoryMiB: 1024, GuaranteeMilli: 1000}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"MIG instance", []gpu.ReservedDevice{mig}, gpu.SharingNone, taskconfig.GPURequest{}, gpu.Share{GuaranteeMilli: 1000}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"time-sliced", []gpu.ReservedDevice{slicesOf(uuidA, 8)}, gpu.SharingTimeslice, taskconfig.GPURequest{}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 101}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"a turn", []gpu.ReservedDevice{turn}, gpu.SharingTimeslice, taskconfig.GPURequest{}, gpu.Share{}, "NVIDIA_VISIBLE_DEVICES=void"},
		{"a turn under MPS", []gpu.ReservedDevice{turn}, gpu.SharingMPS, taskconfig.GPURequest{}, gpu.Share{LimitMilli: 1000},
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 CUDA_MPS_LOG_DIRECTORY=/run/nomad-gpu/mps/log CUDA_MPS_PIPE_DIRECTORY=/run/nomad-gpu/mps/pipe NVIDIA_VISIBLE_DEVICES=void"},
		{"HAMi-core", []gpu.ReservedDevice{slicesOf(uuidA, 8)}, gpu.SharingHAMi, taskconfig.GPURequest{}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 101, LimitMilli: 101},
			"CUDA_DEVICE_MEMORY_LIMIT_0=8192m CUDA_DEVICE_MEMORY_SHARED_CACHE=/run/nomad-gpu/hami/cache/vgpu.cache CUDA_DEVICE_SM_LIMIT=11 CUDA_REDIRECT=/run/nomad-gpu/hami/libvgpu.so NVIDIA_VISIBLE_DEVICES=void"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := state(test.devices[0].UUID, test.sharing)
			s.Mode = test.devices[0].Mode
			share, err := NewShare(test.devices, map[string]gpu.GPUState{s.UUID: s}, test.want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.share, share.Holdings[0].Share); diff != "" {
				t.Error(diff)
			}
			if want := []string{s.CDIDevice}; !slices.Equal(share.Devices, want) {
				t.Errorf("devices are %q, want %q", share.Devices, want)
			}
			if got := strings.Join(Env(nil, nil, nil, share.Env), " "); got != test.env {
				t.Errorf("environment is\n%s, want\n%s", got, test.env)
			}
		})
	}
}

// A task with several whole GPUs sees each of them, and has a limit on none.
func TestShareOfSeveralGPUs(t *testing.T) {
	a, b := state(uuidA, gpu.SharingMPS), state(uuidB, gpu.SharingMPS)
	b.Mode = gpu.ModeWhole
	share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 79), {UUID: uuidB, Mode: gpu.ModeWhole}}, map[string]gpu.GPUState{uuidA: a, uuidB: b}, taskconfig.GPURequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(share.Devices, []string{a.CDIDevice, b.CDIDevice}) || len(share.Holdings) != 2 || share.Holdings[0].UUID != uuidA || share.Holdings[1].UUID != uuidB {
		t.Errorf("devices %q, holdings %+v", share.Devices, share.Holdings)
	}
	if share.MPS || len(share.Env) > 0 || len(share.Mounts) > 0 || share.PipeDir() != "" {
		t.Errorf("it is limited: %+v", share)
	}
}

// The most that a task may ask for later is what the operator allows, or all of the GPU.
func TestCeilingOfAShare(t *testing.T) {
	for burst, want := range map[int64]int64{0: 1000, 1: 1, 900: 900} {
		part := slicesOf(uuidA, 8)
		part.BurstMilli = burst
		share, err := NewShare([]gpu.ReservedDevice{part}, map[string]gpu.GPUState{uuidA: state(uuidA, gpu.SharingTimeslice)}, taskconfig.GPURequest{})
		if err != nil || share.CeilingMilli != want {
			t.Errorf("where the operator allows %d: %d, %v", burst, share.CeilingMilli, err)
		}
	}
}

func TestNewShareRefuses(t *testing.T) {
	good := state(uuidA, gpu.SharingMPS)
	changed := func(change func(*gpu.GPUState)) gpu.GPUState {
		s := state(uuidA, gpu.SharingMPS)
		change(&s)
		return s
	}
	part := []gpu.ReservedDevice{slicesOf(uuidA, 8)}
	for _, test := range []struct {
		name    string
		devices []gpu.ReservedDevice
		state   gpu.GPUState
		want    taskconfig.GPURequest
		says    string
		waiting bool
	}{
		{"memory above the slices", part, good, taskconfig.GPURequest{MemoryMiB: 8193}, "gpu.memory: 8193M is more than the 8G", false},
		{"limit below the guarantee of the slices", part, good, taskconfig.GPURequest{ComputeLimitMilli: 100}, "below the guarantee, 101", false},
		{"limit above the operator's", part, good, taskconfig.GPURequest{ComputeLimitMilli: 901}, "above 900, the most that", false},
		{"limit without a mechanism", part, changed(func(s *gpu.GPUState) { s.Sharing = gpu.SharingTimeslice }), taskconfig.GPURequest{ComputeLimitMilli: 500}, "whose sharing is timeslice", false},
		{"compute of a whole GPU", []gpu.ReservedDevice{slicesOf(uuidA, 79)}, good, taskconfig.GPURequest{ComputeMilli: 500}, "holds all of GPU", false},
		{"part and whole", []gpu.ReservedDevice{slicesOf(uuidA, 8), slicesOf(uuidB, 79)}, good, taskconfig.GPURequest{}, "task holds a part of GPU " + uuidA + " and 1 more: a task with a part of a GPU under mps can use that one GPU only", false},
		{"block for two", []gpu.ReservedDevice{slicesOf(uuidA, 79), slicesOf(uuidB, 79)}, good, taskconfig.GPURequest{MemoryMiB: 1}, "for tasks on one GPU", false},
		{"block for none", nil, good, taskconfig.GPURequest{MemoryMiB: 1}, "the task has no GPU", false},
		{"no state", []gpu.ReservedDevice{slicesOf(uuidB, 8)}, good, taskconfig.GPURequest{}, "published no state", true},
		{"fault", part, changed(func(s *gpu.GPUState) { s.Faults = []gpu.Fault{{Message: "lost", Action: "reboot"}} }), taskconfig.GPURequest{}, "lost; reboot", true},
		{"MPS not ready", part, changed(func(s *gpu.GPUState) { s.MPS.Ready = false }), taskconfig.GPURequest{}, "MPS daemon is not ready", true},
		{"MPS unknown", part, changed(func(s *gpu.GPUState) { s.MPS = nil }), taskconfig.GPURequest{}, "MPS daemon is not ready", true},
		{"HAMi-core missing", part, changed(func(s *gpu.GPUState) { s.Sharing, s.HAMi = gpu.SharingHAMi, nil }), taskconfig.GPURequest{}, "HAMi-core is not installed", true},
		{"another mode", part, changed(func(s *gpu.GPUState) { s.Mode = gpu.ModeWhole }), taskconfig.GPURequest{}, "given it as slice, now it is offered as whole", true},
		{"no CDI name", part, changed(func(s *gpu.GPUState) { s.CDIDevice = "" }), taskconfig.GPURequest{}, "names no CDI device", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := good
			other.UUID = uuidB
			states := map[string]gpu.GPUState{uuidA: test.state}
			if len(test.devices) > 1 {
				states[uuidB] = other
			}
			_, err := NewShare(test.devices, states, test.want)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want %q", err, test.says)
			}
			var waiting *NotReadyError
			if errors.As(err, &waiting) != test.waiting {
				t.Errorf("waiting helps: %v, want %v", !test.waiting, test.waiting)
			}
		})
	}
}

func TestEnvPrecedence(t *testing.T) {
	got := Env(
		[]string{"A=image", "B=image", "C=image", "D=image", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12", "EMPTY="},
		map[string]string{"B": "task", "C": "task", "D": "task", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVIDIA_API_KEY": "key", "CUDA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES=1": "smuggled", "": "nameless"},
		map[string]string{"C": "device", "D": "device", "CUDA_MPS_PIPE_DIRECTORY": "/device"},
		map[string]string{"D": "driver", "CUDA_MPS_PIPE_DIRECTORY": "/driver"})
	want := []string{"A=image", "B=task", "C=device", "CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_MPS_PIPE_DIRECTORY=/driver", "D=driver", "EMPTY=",
		"NVIDIA_API_KEY=key", "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_VISIBLE_DEVICES=void"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDroppedVariablesAreThoseOfTheTask(t *testing.T) {
	device := map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/device", "NVIDIA_VISIBLE_DEVICES": "GPU-1"}
	got := Dropped(map[string]string{"PATH": "/bin", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "all",
		"CUDA_MPS_PIPE_DIRECTORY": "/device", "CUDA_VISIBLE_DEVICES": "0"}, device)
	if want := []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzEnvNeverLetsGuardedVariablesThrough(f *testing.F) {
	f.Add("NVIDIA_VISIBLE_DEVICES", "all")
	f.Add("CUDA_MPS_PIPE_DIRECTORY=x", "y")
	f.Add("NOMAD_GPU_1_0", "{}")
	f.Add("CUDA_VISIBLE_DEVICES=1", "x")
	f.Fuzz(func(t *testing.T, key, value string) {
		for _, entry := range Env([]string{key + "=" + value}, map[string]string{key: value}, nil, nil) {
			name, _, _ := strings.Cut(entry, "=")
			if gpu.GuardedEnv(name) && entry != "NVIDIA_VISIBLE_DEVICES=void" {
				t.Fatalf("%q=%q let %q through", key, value, entry)
			}
		}
	})
}

func TestSharePriority(t *testing.T) {
	below := taskconfig.GPURequest{BelowNormal: true}
	knows := func(sharing gpu.Sharing, priorities bool) map[string]gpu.GPUState {
		s := state(uuidA, sharing)
		s.MPS.Priorities = priorities
		return map[string]gpu.GPUState{uuidA: s}
	}
	for _, tc := range []struct {
		name   string
		states map[string]gpu.GPUState
		slices int
		want   taskconfig.GPURequest
		env    string
		err    string
	}{
		{"none asked for", knows(gpu.SharingMPS, true), 8, taskconfig.GPURequest{}, "", ""},
		{"below normal", knows(gpu.SharingMPS, true), 8, below, "1", ""},
		{"a branch without", knows(gpu.SharingMPS, false), 8, below, "", "use a driver of branch 535 or newer"},
		{"a whole GPU", knows(gpu.SharingMPS, true), 79, below, "", "is not shared so"},
		{"another sharing", knows(gpu.SharingHAMi, true), 8, below, "", "is not shared so"},
	} {
		share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, tc.slices)}, tc.states, tc.want)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if got := share.Env[gpu.EnvMPSPriority]; err != nil || got != tc.env {
			t.Errorf("%s: priority is %q, %v", tc.name, got, err)
		}
	}
}
