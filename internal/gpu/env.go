// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The variables by which programs, container engines and libraries learn which
// GPU they have and how much of it.
const (
	EnvNVIDIAVisible = "NVIDIA_VISIBLE_DEVICES"
	EnvCUDAVisible   = "CUDA_VISIBLE_DEVICES"

	EnvMPSPipeDir  = "CUDA_MPS_PIPE_DIRECTORY"
	EnvMPSLogDir   = "CUDA_MPS_LOG_DIRECTORY"
	EnvMPSThreads  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	EnvMPSMemory   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	EnvMPSPriority = "CUDA_MPS_CLIENT_PRIORITY"
	// EnvMPSShmDir is not CUDA's: a job of another container driver mounts it as
	// /dev/shm.
	EnvMPSShmDir = "CUDA_MPS_SHM_DIRECTORY"

	// HAMi-core counts devices by their position; a task has one.
	EnvHAMiMemory = "CUDA_DEVICE_MEMORY_LIMIT"
	EnvHAMiSM     = "CUDA_DEVICE_SM_LIMIT"
	EnvHAMiCache  = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// EnvHAMiSelf is where HAMi-core finds its own library.
	EnvHAMiSelf = "CUDA_REDIRECT"

	// AMD's: ROCr takes UUIDs or positions, HIP positions among what ROCr shows.
	EnvROCRVisible = "ROCR_VISIBLE_DEVICES"
	EnvHIPVisible  = "HIP_VISIBLE_DEVICES"
	// Intel's, for Level Zero: positions.
	EnvZEAffinity = "ZE_AFFINITY_MASK"
	// Huawei's: of the container runtime and of the Ascend runtime, positions.
	EnvAscendVisible   = "ASCEND_VISIBLE_DEVICES"
	EnvAscendRTVisible = "ASCEND_RT_VISIBLE_DEVICES"
	// EnvAscendOptions tells Huawei's container runtime that the number is a vNPU's.
	EnvAscendOptions = "ASCEND_RUNTIME_OPTIONS"
)

// guardedEnv are the variables that decide which GPU a program gets and how much
// of it, by name. Frameworks have names of their own beside them, which pass:
// CUDA_DEVICE_ORDER, CUDA_DEVICE_MAX_CONNECTIONS, NVIDIA_TF32_OVERRIDE,
// NVIDIA_API_KEY.
var guardedEnv = []string{
	// What NVIDIA's container runtimes hand out by.
	EnvNVIDIAVisible, "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS",
	"NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_NVSWITCH",
	"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT",
	EnvCUDAVisible,
	// MPS: of a client, of a daemon, and of both.
	EnvMPSPipeDir, EnvMPSLogDir, EnvMPSThreads, EnvMPSMemory, EnvMPSShmDir,
	EnvMPSPriority, EnvMPSPartition, "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
	// HAMi-core, with its off-switches.
	EnvHAMiMemory, EnvHAMiSM, EnvHAMiCache, EnvHAMiSelf, "CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY", "CUDA_OVERSUBSCRIBE",
	"CUDA_TASK_PRIORITY", "ACTIVE_OOM_KILLER",
	// Other vendors' choice of devices. A container has the nodes of its own alone,
	// and counts positions among these: the host's would be wrong there.
	EnvROCRVisible, EnvHIPVisible, "GPU_DEVICE_ORDINAL", "AMD_VISIBLE_DEVICES", "DOCKER_RESOURCE_ID",
	EnvZEAffinity, EnvAscendVisible, EnvAscendRTVisible, EnvAscendOptions, "ASCEND_VNPU_SPECS",
	// Where the task asks about its share.
	EnvSelfSocket,
}

// guardedIndexed are those that HAMi-core also reads with a device's position.
var guardedIndexed = []string{EnvHAMiMemory + "_", EnvHAMiSM + "_"}

// GuardedEnv reports whether a variable is ours to set, whatever the image, the
// task or a template says.
func GuardedEnv(key string) bool {
	return slices.Contains(guardedEnv, key) || IsReservationKey(key) ||
		slices.ContainsFunc(guardedIndexed, func(prefix string) bool {
			position, found := strings.CutPrefix(key, prefix)
			return found && position != "" && countDigits(position) == len(position)
		})
}

// Percent rounds compute up to whole percents, which is what MPS and HAMi-core
// read: a limit never falls below the request, and is never 0, which would
// mean none.
func Percent(milli int64) int64 { return max(1, (milli+9)/10) }

// MPSEnv is the environment that makes a CUDA program a client of an MPS daemon,
// with the limits of its share. The program sees one device, so it is number 0.
func MPSEnv(pipeDir, logDir string, s Share) map[string]string {
	env := map[string]string{EnvMPSPipeDir: pipeDir, EnvMPSLogDir: logDir}
	if s.LimitMilli > 0 {
		env[EnvMPSThreads] = strconv.FormatInt(Percent(s.LimitMilli), 10)
	}
	if most := s.MostMiB(); most > 0 {
		env[EnvMPSMemory] = fmt.Sprintf("0=%dM", most)
	}
	return env
}

// HAMiEnv is the environment by which HAMi-core, once it is loaded, knows the
// limits of a share; library is where it lies, and cache a file that only the task's
// processes share.
func HAMiEnv(library, cache string, s Share) map[string]string {
	env := map[string]string{EnvHAMiSelf: library, EnvHAMiCache: cache}
	if s.LimitMilli > 0 {
		env[EnvHAMiSM] = strconv.FormatInt(Percent(s.LimitMilli), 10)
	}
	if s.MemoryMiB > 0 {
		env[EnvHAMiMemory+"_0"] = fmt.Sprintf("%dm", s.MemoryMiB)
	}
	return env
}
