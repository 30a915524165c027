// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"maps"
	"testing"
)

func TestGuardedEnvIsByName(t *testing.T) {
	for _, key := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
		"CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_SM_PARTITION", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_12",
		"CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_3", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_DISABLE_CONTROL", "NOMAD_GPU_1a2b3c4d_3",
		"NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_IMEX_CHANNELS"} {
		if !GuardedEnv(key) {
			t.Errorf("%s passes", key)
		}
	}
	// Megatron, CUDA, PyTorch and NGC read these.
	for _, key := range []string{"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE", "NVIDIA_API_KEY", "CUDA_LAUNCH_BLOCKING",
		"CUDA_DEVICE_MEMORY_LIMIT_", "CUDA_DEVICE_MEMORY_LIMIT_X", "NVIDIA_REQUIRE_CUDA", "PATH", ""} {
		if GuardedEnv(key) {
			t.Errorf("%s is guarded", key)
		}
	}
}

func TestPercentIsNeverBelowTheLimit(t *testing.T) {
	for milli, want := range map[int64]int64{0: 1, 1: 1, 10: 1, 11: 2, 12: 2, 19: 2, 20: 2, 333: 34, 991: 100, 1000: 100} {
		if got := Percent(milli); got != want {
			t.Errorf("Percent(%d) = %d, want %d", milli, got, want)
		}
	}
}

func TestLimitsInTheEnvironment(t *testing.T) {
	full, least, none := Share{MemoryMiB: 2048, GuaranteeMilli: 25, LimitMilli: 301}, Share{MemoryMiB: 1, LimitMilli: 1}, Share{}
	for name, tc := range map[string]struct{ got, want map[string]string }{
		"MPS": {MPSEnv("/p", "/l", full), map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/p", "CUDA_MPS_LOG_DIRECTORY": "/l",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "31", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"}},
		"MPS, the least": {MPSEnv("/p", "/l", least), map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/p", "CUDA_MPS_LOG_DIRECTORY": "/l",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M"}},
		"MPS without limits": {MPSEnv("/p", "/l", none), map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/p", "CUDA_MPS_LOG_DIRECTORY": "/l"}},
		"HAMi": {HAMiEnv("/l.so", "/c", full), map[string]string{"CUDA_REDIRECT": "/l.so", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/c", "CUDA_DEVICE_SM_LIMIT": "31",
			"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"}},
		"HAMi, the least": {HAMiEnv("/l.so", "/c", least), map[string]string{"CUDA_REDIRECT": "/l.so", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/c", "CUDA_DEVICE_SM_LIMIT": "1",
			"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"}},
		"HAMi without limits": {HAMiEnv("/l.so", "/c", none), map[string]string{"CUDA_REDIRECT": "/l.so", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/c"}},
	} {
		if !maps.Equal(tc.got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, tc.got, tc.want)
		}
	}
}
