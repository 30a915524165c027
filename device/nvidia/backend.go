// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// ErrAbsent means that there is no NVML to talk to: no driver, or none loaded. It
// is a hardware.ErrAbsent.
var ErrAbsent error = hardware.Absence("NVML is not available")

// ErrMismatch means that the driver was changed under its library: the kernel
// module that runs and the library are of different versions. Once a library is
// loaded a process keeps it: only a new process sees a new one.
var ErrMismatch = errors.New("the driver's kernel module and its library have different versions")

// absent is the error of a library that cannot be used.
func absent(ret nvml.Return) error {
	if ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
		return ErrMismatch
	}
	return fmt.Errorf("%w: %s", ErrAbsent, describe(ret))
}

// Vendor is the vendor of every device that this backend sees.
const Vendor = "nvidia"

// Backend sees the GPUs of one NVML library. Its methods may be called from
// many goroutines.
type Backend struct {
	lib      nvml.Interface
	guard    *guard.Guard
	samplers samplers
	uses     uses
	// hostMemory is the machine's memory in MiB.
	hostMemory func() (int64, error)
	// unified says whether cgroup v2 is mounted where the driver looks.
	unified func() bool
	// numaNode is where on the machine's CPUs a PCI address is, -1 where that is not known.
	numaNode func(bus string) int

	// gate is held for writing while the library is let go of.
	gate sync.RWMutex

	mu sync.Mutex
	up bool
}

// New wraps a library. Calls that take longer than timeout are abandoned.
func New(lib nvml.Interface, timeout time.Duration) *Backend {
	b := &Backend{lib: lib, guard: guard.New(timeout), samplers: samplers{all: map[string]*sampler{}}, hostMemory: hostMemoryMiB, unified: unifiedCgroups, numaNode: numaNode}
	if simulated, ok := lib.(interface{ HostMemoryMiB() (int64, error) }); ok {
		b.hostMemory = simulated.HostMemoryMiB
	}
	if simulated, ok := lib.(interface{ Unified() bool }); ok {
		b.unified = simulated.Unified
	}
	if simulated, ok := lib.(interface{ NUMANode(bus string) int }); ok {
		b.numaNode = simulated.NUMANode
	}
	return b
}

// Close ends the use of NVML. It does not wait for calls that hang.
func (b *Backend) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up {
		b.up = false
		_, _ = guard.Call(b.guard, "library", func() nvml.Return {
			b.samplers.free()
			return b.lib.Shutdown()
		})
	}
}

// Release does something while this process has no GPU open: a reset, say. What
// else is asked of the GPUs waits meanwhile.
func (b *Backend) Release(f func() error) error {
	b.gate.Lock()
	defer b.gate.Unlock()
	b.Close()
	return f()
}

// open initializes NVML where that has not been done.
func (b *Backend) open() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up {
		return nil
	}
	ret, err := guard.Call(b.guard, "library", b.lib.Init)
	if err != nil {
		return fmt.Errorf("initialize NVML: %w", err)
	}
	if ret != nvml.SUCCESS && ret != nvml.ERROR_ALREADY_INITIALIZED {
		return absent(ret)
	}
	b.up = true
	return nil
}

// Survey asks every GPU who and how it is. The error is ErrAbsent when NVML is
// not there, and says that nothing was seen, not that nothing is there.
func (b *Backend) Survey() (hardware.Machine, error) {
	b.gate.RLock()
	defer b.gate.RUnlock()
	if err := b.open(); err != nil {
		return hardware.Machine{}, err
	}
	machine, err := guard.Call(b.guard, "library", b.system)
	if err != nil {
		return hardware.Machine{}, fmt.Errorf("survey GPUs: %w", err)
	}
	if machine.ret != nvml.SUCCESS {
		// The driver went away under us: start again with the next survey.
		b.Close()
		return hardware.Machine{}, absent(machine.ret)
	}
	var found hardware.Machine
	driver := hardware.Driver{Version: machine.driver, Platform: machine.cuda, Outdated: b.replaced()}
	for i := range machine.count {
		b.one(i, &found, &driver)
	}
	found.Drivers = map[string]hardware.Driver{Vendor: driver}
	return found, nil
}

type system struct {
	driver, cuda string
	count        int
	ret          nvml.Return
}

func (b *Backend) system() system {
	var s system
	s.driver, _ = b.lib.SystemGetDriverVersion()
	if v, ret := b.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		s.cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	s.count, s.ret = b.lib.DeviceGetCount()
	return s
}

// one adds the GPU at a position to the survey, as far as it answers.
func (b *Backend) one(index int, found *hardware.Machine, driver *hardware.Driver) {
	place := fmt.Sprintf("index %d", index)
	who, err := guard.Call(b.guard, place, func() identity { return b.identify(index) })
	switch {
	case err != nil:
		driver.Unknown = append(driver.Unknown, hanging(place))
		return
	case who.ret != nvml.SUCCESS:
		driver.Unknown = append(driver.Unknown, problemOf(who.ret, "GPU at "+place))
		return
	}
	g, err := guard.Call(b.guard, who.uuid, func() hardware.GPU { return b.inspect(who.device, who.uuid) })
	if err != nil {
		g = hardware.GPU{UUID: who.uuid, Problems: []hardware.Problem{hanging("GPU")}}
	}
	g.Vendor, g.Type, g.Index = Vendor, "gpu", index
	found.GPUs = append(found.GPUs, g)
}

type identity struct {
	device nvml.Device
	uuid   string
	ret    nvml.Return
}

func (b *Backend) identify(index int) identity {
	device, ret := b.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return identity{ret: ret}
	}
	uuid, ret := device.GetUUID()
	return identity{device, uuid, ret}
}

// handle finds a device by its UUID.
func (b *Backend) handle(uuid string) (nvml.Device, error) {
	device, ret := b.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find device %s: %w", uuid, returnError(ret))
	}
	return device, nil
}

// on runs f with a device, bounded in time; owner is the physical GPU's UUID.
func on[T any](b *Backend, owner, uuid string, f func(nvml.Device) T) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	b.gate.RLock()
	defer b.gate.RUnlock()
	if err := b.open(); err != nil {
		var zero T
		return zero, err
	}
	o, err := guard.Call(b.guard, owner, func() outcome {
		device, err := b.handle(uuid)
		if err != nil {
			return outcome{err: err}
		}
		return outcome{value: f(device)}
	})
	if err != nil {
		return o.value, fmt.Errorf("ask device %s: %w", uuid, err)
	}
	return o.value, o.err
}
