// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Where a container finds what belongs to its GPU share. The paths are the same
// in every container, so they tell nothing about the host.
const (
	mpsPipePath   = "/run/nomad-gpu/mps/pipe"
	mpsLogPath    = "/run/nomad-gpu/mps/log"
	hamiLibPath   = "/run/nomad-gpu/hami/libvgpu.so"
	hamiCachePath = "/run/nomad-gpu/hami/cache"
	hamiLockPath  = "/tmp/vgpulock"

	hamiOverridePath = "/overrideEnv"
	voidVisibility   = "void"
)

// Share is what a task holds of GPUs, and what its container needs for it.
type Share struct {
	Holdings []gpu.Holding
	// Devices are qualified CDI names.
	Devices []string
	// Env is set in the container after everything else.
	Env map[string]string
	// Mounts are host directories or files to bind.
	Mounts []taskconfig.Mount
	// MPS is true for a task that is a client of an MPS daemon, whose /dev/shm
	// it must share.
	MPS bool
	// OneUser is true where the daemon's server takes programs of one user at a time.
	OneUser bool
	// pipeDir is the daemon's pipe directory on the host.
	pipeDir string
	// HAMi is true for a task that loads HAMi-core.
	HAMi bool
	// Dmem are limits of GPU memory in bytes that the kernel holds, by region.
	Dmem map[string]int64
	// CeilingMilli is the most compute that the operator lets the task use.
	CeilingMilli int64
	// MemoryLimits are what the vendor's driver is asked to hold the task to.
	MemoryLimits []MemoryLimit
}

// NotReadyError says that a GPU cannot be used now, though nothing is wrong with
// the task: starting it again later may succeed.
type NotReadyError struct {
	UUID   string
	Reason string
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("GPU %s is not ready: %s", e.UUID, e.Reason)
}

// NewShare computes a task's share from the devices that Nomad reserved for it
// and the state of those devices, by UUID. It fails with a *NotReadyError when
// waiting may help, and with another error when the task must change.
func NewShare(devices []gpu.ReservedDevice, states map[string]gpu.GPUState, want taskconfig.GPURequest) (Share, error) {
	share := Share{Env: map[string]string{}}
	if len(devices) == 0 {
		if want.Set() {
			return Share{}, fmt.Errorf("config has a gpu block, but the task has no GPU: add a device block such as device \"nvidia/slice\" { count = 8 } to its resources")
		}
		return share, nil
	}
	if want.Set() && len(devices) > 1 {
		return Share{}, fmt.Errorf("config has a gpu block, but the task holds %d GPUs: the block is for tasks on one GPU", len(devices))
	}
	for _, d := range devices {
		state, err := usableState(d, states)
		if err != nil {
			return Share{}, err
		}
		if err := onePipe(d, state.Sharing, len(devices)); err != nil {
			return Share{}, err
		}
		holding, err := holdingOf(d, state, want)
		if err != nil {
			return Share{}, err
		}
		if err := errors.Join(priorityOn(d, state, want), oneSeat(d, state, len(devices))); err != nil {
			return Share{}, err
		}
		if holding, err = seatOf(holding, state, want); err != nil {
			return Share{}, err
		}
		share.add(d, state, holding)
		if want.BelowNormal && state.Sharing == gpu.SharingMPS {
			share.Env[gpu.EnvMPSPriority] = "1"
		}
	}
	return share, nil
}

// priorityOn refuses a priority that nothing would keep.
func priorityOn(d gpu.ReservedDevice, state gpu.GPUState, want taskconfig.GPURequest) error {
	switch {
	case state.Sharing == gpu.SharingSuspend && !d.Whole():
		return nil // seatOf looks at it
	case want.SeatPriority != 0:
		return fmt.Errorf("gpu.priority: %d is for tasks that step aside for each other (sharing = %q), and GPU %s is not shared so; remove it", want.SeatPriority, gpu.SharingSuspend, d.UUID)
	case !want.BelowNormal:
		return nil
	case d.Whole() || state.Sharing != gpu.SharingMPS:
		return fmt.Errorf("gpu.priority: %q is for tasks that share a GPU through MPS, and GPU %s is not shared so; remove it", taskconfig.PriorityBelowNormal, d.UUID)
	case state.MPS == nil || !state.MPS.Priorities:
		return fmt.Errorf("gpu.priority: %q is not known to the MPS of this node's NVIDIA driver; remove it, or use a driver of branch 535 or newer", taskconfig.PriorityBelowNormal)
	}
	return nil
}

// usableState returns the state of a device that a task may start on.
func usableState(d gpu.ReservedDevice, states map[string]gpu.GPUState) (gpu.GPUState, error) {
	state, ok := states[d.UUID]
	switch {
	case !ok:
		return state, &NotReadyError{d.UUID, "the device plugin has published no state for it; see whether nomad-device-gpu runs on this node"}
	case len(state.Faults) > 0:
		return state, &NotReadyError{d.UUID, state.Faults[0].String()}
	case state.Mode != d.Mode:
		return state, &NotReadyError{d.UUID, fmt.Sprintf("the task was given it as %s, now it is offered as %s", d.Mode, state.Mode)}
	case state.CDIDevice == "":
		return state, &NotReadyError{d.UUID, "the device plugin names no CDI device for it"}
	case d.Whole() || state.Sharing != gpu.SharingMPS:
		return state, errors.Join(hamiReady(d, state), kernelReady(d, state))
	case state.MPS == nil || !state.MPS.Ready:
		return state, &NotReadyError{d.UUID, "its MPS daemon is not ready, and without it no limit would hold"}
	}
	return state, nil
}

// kernelReady: where the kernel is to hold the limit, it must know the device.
func kernelReady(d gpu.ReservedDevice, state gpu.GPUState) error {
	if !d.Whole() && state.Sharing == gpu.SharingDmem && state.Dmem == "" {
		return &NotReadyError{d.UUID, "the kernel has no control group for its memory, and without it no limit would hold"}
	}
	return nil
}

func hamiReady(d gpu.ReservedDevice, state gpu.GPUState) error {
	if !d.Whole() && state.Sharing == gpu.SharingHAMi && (state.HAMi == nil || state.HAMi.Library == "") {
		return &NotReadyError{d.UUID, "HAMi-core is not installed where the device plugin looks, and without it no limit would hold"}
	}
	return nil
}

// onePipe refuses tasks that no limit could reach: a process is a client of one
// MPS daemon only, and HAMi-core counts devices by an order that differs
// between libraries.
func onePipe(d gpu.ReservedDevice, sharing gpu.Sharing, devices int) error {
	limited := sharing == gpu.SharingMPS || sharing == gpu.SharingHAMi
	if d.Whole() || !limited || devices == 1 {
		return nil
	}
	return fmt.Errorf("task holds a part of GPU %s and %d more: a task with a part of a GPU under %s can use that one GPU only; take all slices of each GPU, or one GPU per task",
		d.UUID, devices-1, sharing)
}

// holdingOf decides the memory cap, the guarantee and the limit on one device.
func holdingOf(d gpu.ReservedDevice, state gpu.GPUState, want taskconfig.GPURequest) (gpu.Holding, error) {
	h := gpu.Holding{UUID: d.UUID, Mode: d.Mode, Slices: d.Slices}
	var err error
	if h.MemoryMiB, err = memoryCap(d, state, want); err != nil {
		return h, err
	}
	if h.MemoryLimitMiB, err = memoryBurst(d, state, h.MemoryMiB, want); err != nil {
		return h, err
	}
	if d.Whole() {
		h.GuaranteeMilli = gpu.MilliPerGPU
		return h, wholeRefuses(d, want)
	}
	if state.Sharing == gpu.SharingMPS && state.MPS != nil {
		h.MPSGeneration = state.MPS.Generation
	}
	h.GuaranteeMilli = d.Milli
	if want.ComputeMilli != 0 {
		h.GuaranteeMilli = want.ComputeMilli
	}
	if h.GuaranteeMilli < 0 || h.GuaranteeMilli > gpu.MilliPerGPU {
		return h, fmt.Errorf("gpu.compute: %d is not between 1 and %d (thousandths of a GPU)", want.ComputeMilli, gpu.MilliPerGPU)
	}
	if state.Sharing == gpu.SharingMPS && state.MPS != nil && state.MPS.Partitioning != nil {
		return partitionOf(d, h, *state.MPS.Partitioning, want)
	}
	h.LimitMilli, err = limitOf(d, state, h.GuaranteeMilli, want)
	return h, err
}

// partitionOf gives a task as many chunks of multiprocessors of its own as its guarantee
// takes. It has no others; a replica's part is as large as every other's.
func partitionOf(d gpu.ReservedDevice, h gpu.Holding, p gpu.MPSPartitioning, want taskconfig.GPURequest) (gpu.Holding, error) {
	if h.GuaranteeMilli == 0 {
		h.GuaranteeMilli = int64(len(d.Slices)) * gpu.MilliPerGPU / int64(d.Of)
	}
	if want.ComputeLimitMilli != 0 && want.ComputeLimitMilli != h.GuaranteeMilli {
		return h, fmt.Errorf("gpu.compute_limit: %d is not the guarantee, %d, and on GPU %s every task has multiprocessors of its own and no others (mps { static_partitioning }); remove it, or write gpu.compute",
			want.ComputeLimitMilli, h.GuaranteeMilli, d.UUID)
	}
	h.LimitMilli = h.GuaranteeMilli
	h.Partition = &gpu.Partition{Chunks: p.For(h.GuaranteeMilli)}
	return h, nil
}

func memoryCap(d gpu.ReservedDevice, state gpu.GPUState, want taskconfig.GPURequest) (int64, error) {
	given := d.MemoryMiB
	if d.Whole() || d.Mode == gpu.ModeShared {
		given = state.MemoryMiB
	}
	switch {
	case want.MemoryMiB < 0:
		return 0, fmt.Errorf("gpu.memory: is negative (write 8G or 512MiB)")
	case want.MemoryMiB > given:
		return 0, fmt.Errorf("gpu.memory: %s is more than the %s that the task's slices of GPU %s give; ask for more slices, or write at most %s",
			gpu.FormatMemory(want.MemoryMiB), gpu.FormatMemory(given), d.UUID, gpu.FormatMemory(given))
	case want.MemoryMiB > 0:
		return want.MemoryMiB, nil
	case d.Whole() || d.Mode == gpu.ModeShared:
		return 0, nil
	}
	return given, nil
}

// wholeRefuses: a task with the whole GPU runs alone on it, so there is no
// daemon that could hold it to a part of the compute.
func wholeRefuses(d gpu.ReservedDevice, want taskconfig.GPURequest) error {
	if want.ComputeMilli != 0 || want.ComputeLimitMilli != 0 {
		return fmt.Errorf("gpu.compute and gpu.compute_limit are for tasks that share a GPU, and the task holds all of GPU %s; remove them", d.UUID)
	}
	return nil
}

func limitOf(d gpu.ReservedDevice, state gpu.GPUState, guarantee int64, want taskconfig.GPURequest) (int64, error) {
	limited := state.Sharing == gpu.SharingMPS || state.Sharing == gpu.SharingHAMi
	ceiling := d.BurstMilli
	if ceiling == 0 {
		ceiling = gpu.MilliPerGPU
	}
	limit := want.ComputeLimitMilli
	switch {
	case limit == 0 && !limited:
		return 0, nil
	case limit == 0 && guarantee == 0:
		return ceiling, nil
	case limit == 0:
		return guarantee, nil
	case !limited:
		return 0, fmt.Errorf("gpu.compute_limit: %d cannot be held on GPU %s, whose sharing is %s; remove it, or ask for a GPU with sharing %s",
			limit, d.UUID, state.Sharing, gpu.SharingMPS)
	case limit < 0 || limit > gpu.MilliPerGPU:
		return 0, fmt.Errorf("gpu.compute_limit: %d is not between 1 and %d (thousandths of a GPU)", limit, gpu.MilliPerGPU)
	case limit < guarantee:
		return 0, fmt.Errorf("gpu.compute_limit: %d is below the guarantee, %d; write at least %d", limit, guarantee, guarantee)
	case limit > ceiling:
		return 0, fmt.Errorf("gpu.compute_limit: %d is above %d, the most that this node's operator allows on GPU %s", limit, ceiling, d.UUID)
	}
	return limit, nil
}

func (s *Share) add(d gpu.ReservedDevice, state gpu.GPUState, h gpu.Holding) {
	s.Holdings = append(s.Holdings, h)
	s.Devices = append(s.Devices, state.CDIDevice)
	if d.Whole() {
		return
	}
	if s.CeilingMilli = d.BurstMilli; s.CeilingMilli == 0 {
		s.CeilingMilli = gpu.MilliPerGPU
	}
	if state.Limiter != nil && h.MemoryMiB > 0 {
		s.MemoryLimits = append(s.MemoryLimits, MemoryLimit{UUID: d.UUID, Command: state.Limiter.Command, GuaranteeMiB: h.MemoryMiB, LimitMiB: h.MostMiB()})
	}
	switch state.Sharing {
	case gpu.SharingMPS:
		s.addMPS(state.MPS, h)
	case gpu.SharingHAMi:
		s.addHAMi(state.HAMi, h)
	case gpu.SharingDmem:
		if h.MemoryMiB > 0 {
			if s.Dmem == nil {
				s.Dmem = map[string]int64{}
			}
			s.Dmem[state.Dmem] = h.MemoryMiB << 20
		}
	}
}

// unified are the settings of the task's control group that OCI has no fields for.
func (s *Share) unified() map[string]string {
	if len(s.Dmem) == 0 {
		return nil
	}
	lines := make([]string, 0, len(s.Dmem))
	for _, region := range slices.Sorted(maps.Keys(s.Dmem)) {
		lines = append(lines, fmt.Sprintf("%s %d", region, s.Dmem[region]))
	}
	return map[string]string{"dmem.max": strings.Join(lines, "\n")}
}

func (s *Share) addMPS(mps *gpu.MPSState, h gpu.Holding) {
	s.MPS = true
	limits := h.Share
	if h.Partition != nil {
		limits.LimitMilli = 0 // a percentage would mean nothing
	}
	maps.Copy(s.Env, gpu.MPSEnv(mpsPipePath, mpsLogPath, limits))
	s.pipeDir, s.OneUser = mps.GateFiles(), mps.Users == gpu.MPSUsersOne
	s.Mounts = append(s.Mounts,
		// The task's own, with the daemon's entries in it: see ShowPipes. Writable,
		// since it is not known that CUDA can do without, and a client that cannot
		// reach its daemon runs without limits.
		taskconfig.Mount{Type: "bind", Source: mps.PipeDir, Target: mpsPipePath, Options: []string{"rbind", "rw", "nosuid", "nodev", "noexec", "rslave"}},
		// Clients write no log of their own, and the daemon's tells about others.
		taskconfig.Mount{Type: "tmpfs", Source: "tmpfs", Target: mpsLogPath, Options: []string{"nosuid", "nodev", "noexec", "size=1m", "mode=1777"}},
		taskconfig.Mount{Type: "bind", Source: mps.ShmDir, Target: taskconfig.ShmPath, Options: []string{"rbind", "rw", "nosuid", "nodev", "noexec"}},
	)
}

// SetPartition has the task's programs run on a partition of a device.
func (s *Share) SetPartition(uuid, id string) { s.Env[gpu.EnvMPSPartition] = uuid + "/" + id }

// PipeNames are the entries of a daemon's pipe directory that clients get: where they
// connect to, and where they log. Not among them is control_privileged, by which root
// in any container could change the limits of all and end the daemon: on control, the
// daemon refuses that.
var PipeNames = []string{"control", "log"}

// mpsPrograms speak to daemons, and become ones. NVIDIA's CDI specs bring them
// into containers, where nothing needs them.
var mpsPrograms = []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// MPSProgram reports whether a path in a container is one of MPS's programs.
func MPSProgram(target string) bool { return slices.Contains(mpsPrograms, path.Base(target)) }

// PipeDir is the host's directory of the MPS daemon that the task is a client of,
// "" for none.
func (s *Share) PipeDir() string { return s.pipeDir }

// ShowPipes makes the task see another directory in the place of the daemon's own.
func (s *Share) ShowPipes(dir string) {
	for i := range s.Mounts {
		if s.Mounts[i].Target == mpsPipePath {
			s.Mounts[i].Source = dir
		}
	}
}

func (s *Share) addHAMi(hami *gpu.HAMiState, h gpu.Holding) {
	s.HAMi = true
	maps.Copy(s.Env, gpu.HAMiEnv(hamiLibPath, hamiCachePath+"/vgpu.cache", h.Share))
	s.Mounts = append(s.Mounts,
		taskconfig.Mount{Type: "bind", Source: hami.Library, Target: hamiLibPath, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		taskconfig.Mount{Type: "tmpfs", Source: "tmpfs", Target: hamiCachePath, Options: []string{"nosuid", "nodev", "noexec", "size=16m", "mode=1777"}},
		// HAMi-core takes variables from this file of an image, its off-switches too.
		taskconfig.Mount{Type: "bind", Source: "/dev/null", Target: hamiOverridePath, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
	)
	if hami.LockDir != "" {
		s.Mounts = append(s.Mounts, taskconfig.Mount{Type: "bind", Source: hami.LockDir, Target: hamiLockPath, Options: []string{"rbind", "rw", "nosuid", "nodev", "noexec"}})
	}
}

// PreloadPath is the file by which a container's loader finds HAMi-core, and
// PreloadContent its text.
const (
	PreloadPath    = "/etc/ld.so.preload"
	PreloadContent = hamiLibPath + "\n"
)
