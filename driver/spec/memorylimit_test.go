// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// limited is a GPU whose driver holds slices to their memory.
func limited(sharing gpu.Sharing) gpu.GPUState {
	s := state(uuidA, sharing)
	s.Limiter = &gpu.MemoryLimiter{Command: []string{"/plugin", "memory-limits"}}
	return s
}

func TestMemoryThatTheDriverHolds(t *testing.T) {
	part, all := slicesOf(uuidA, 8), slicesOf(uuidA, 79)
	for _, tc := range []struct {
		name   string
		device gpu.ReservedDevice
		state  gpu.GPUState
		want   taskconfig.GPURequest
		limits []MemoryLimit
		env    string
	}{
		{"slices", part, limited(gpu.SharingMPS), taskconfig.GPURequest{}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 8192, 8192}}, "0=8192M"},
		{"a tighter cap", part, limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryMiB: 1024}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 1024, 1024}}, "0=1024M"},
		{"the tightest cap", part, limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryMiB: 1}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 1, 1}}, "0=1M"},
		{"more while others leave it", part, limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 10240}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 8192, 10240}}, "0=10240M"},
		{"not more", part, limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 8192}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 8192, 8192}}, "0=8192M"},
		{"without MPS", part, limited(gpu.SharingTimeslice), taskconfig.GPURequest{}, []MemoryLimit{{uuidA, []string{"/plugin", "memory-limits"}, 8192, 8192}}, ""},
		{"all slices are the GPU", all, limited(gpu.SharingMPS), taskconfig.GPURequest{}, nil, ""},
		{"an earlier driver", part, state(uuidA, gpu.SharingMPS), taskconfig.GPURequest{}, nil, "0=8192M"},
	} {
		share, err := NewShare([]gpu.ReservedDevice{tc.device}, map[string]gpu.GPUState{uuidA: tc.state}, tc.want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.limits, share.MemoryLimits); diff != "" || share.Env[gpu.EnvMPSMemory] != tc.env {
			t.Errorf("%s: MPS's limit is %q, the driver's (-want +got):\n%s", tc.name, share.Env[gpu.EnvMPSMemory], diff)
		}
	}
}

func TestMemoryLimitRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		device gpu.ReservedDevice
		state  gpu.GPUState
		want   taskconfig.GPURequest
		says   string
	}{
		{"an earlier driver", slicesOf(uuidA, 8), state(uuidA, gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 10240}, "10G cannot be held on GPU " + uuidA + ": it needs NVIDIA's driver from branch 615"},
		{"nobody to take it back", slicesOf(uuidA, 8), limited(gpu.SharingTimeslice), taskconfig.GPURequest{MemoryLimitMiB: 10240}, "sharing = \"mps\""},
		{"below what is its own", slicesOf(uuidA, 8), limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 8191}, "8191M is below the 8G"},
		{"more than there is", slicesOf(uuidA, 8), limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 79*1024 + 1}, "80897M is more than the 79G that all slices"},
		{"the whole GPU", slicesOf(uuidA, 79), limited(gpu.SharingMPS), taskconfig.GPURequest{MemoryLimitMiB: 1024}, "is for tasks that hold slices"},
	} {
		_, err := NewShare([]gpu.ReservedDevice{tc.device}, map[string]gpu.GPUState{uuidA: tc.state}, tc.want)
		if err == nil || !strings.HasPrefix(err.Error(), "gpu.memory_limit: ") || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
