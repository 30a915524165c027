// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	hw "github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Machine is a simulated machine as NVML shows it.
type Machine struct {
	nvml.Interface // answers ERROR_NOT_SUPPORTED
	topology       *Topology
	control        *watchedControl
	hardware       *hardware
	gpus           []*gpu
	unsupported    unsupported
	initialized    atomic.Int32
	library        string // the driver's version when the machine was made
	// indexed are the GPUs by NVML's index, as Init or DeviceGetCount found them:
	// an index keeps its GPU until the next count, even where it goes missing.
	indexed atomic.Pointer[[]*gpu]
	// hostRoom is how much memory a process's control group has left, in bytes.
	hostRoom func(pid int) uint64
	called   func(call string)
	nap      time.Duration
}

var _ nvml.Interface = (*Machine)(nil)

// Options of a machine.
type Options struct {
	// Dir is the simulator's folder.
	Dir string
	// BootID names the present boot: another one forgets the hardware's state.
	BootID string
	// DCMI is the simulated libdcmi.so, for machines with Ascend devices.
	DCMI string
	// HostRoom is how much memory a process's control group has left, in bytes; nil asks
	// the kernel.
	HostRoom func(pid int) uint64
	// Report hears of a control file that cannot be read.
	Report func(error)
	// Called hears of each call to a GPU before it does anything.
	Called func(call string)
}

// New starts a machine with the hardware of a topology.
func New(t *Topology, o Options) (*Machine, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make simulator folder: %w", err)
	}
	if o.HostRoom == nil {
		o.HostRoom = cgroupRoom
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if o.Called == nil {
		o.Called = func(string) {}
	}
	hw, err := openHardware(o.Dir, o.BootID, t)
	if err != nil {
		return nil, err
	}
	not := newUnsupported()
	m := &Machine{
		Interface:   not.library,
		topology:    t,
		control:     &watchedControl{dir: o.Dir, report: o.Report},
		hardware:    hw,
		unsupported: not,
		hostRoom:    o.HostRoom,
		called:      o.Called,
		nap:         50 * time.Millisecond,
	}
	m.library = m.driver()
	for i, g := range t.GPUs {
		m.gpus = append(m.gpus, newGPU(m, i, g))
	}
	return m, nil
}

// HostMemoryMiB is the machine's memory, which is that of its GPU where they share
// one.
func (m *Machine) HostMemoryMiB() (int64, error) {
	for _, g := range m.topology.GPUs {
		if g.unified {
			return int64(g.MemoryMB), nil
		}
	}
	return 0, errors.New("the topology does not say")
}

// NUMANode is the kernel's node of a PCI address, spelled as in sysfs.
func (m *Machine) NUMANode(bus string) int {
	for _, g := range m.gpus {
		if strings.EqualFold(g.bus[len(g.bus)-len(bus):], bus) {
			return g.kind.NUMA
		}
	}
	return -1
}

// Topology is the hardware that the machine was made with.
func (m *Machine) Topology() *Topology { return m.topology }

// Probe stands in for a CUDA program that is run to see whether a GPU works.
func (m *Machine) Probe(what hw.ProbeTarget) error {
	c := m.control.gpu(what.Owner)
	if c.ProbeFails || c.Lost || c.Missing {
		return fmt.Errorf("a simulated CUDA program fails on %s", what.UUID)
	}
	return nil
}

// Reset mends a GPU as a reset does. It is refused while anything has the GPU open:
// a program, or an NVML that is initialized.
func (m *Machine) Reset(uuid string) error {
	c := m.control.gpu(uuid)
	if len(c.Processes) > 0 || m.initialized.Load() > 0 {
		return fmt.Errorf("GPU %s is in use by another client", uuid)
	}
	return Update(m.control.dir, uuid, func(c *Condition) {
		c.RecoveryAction, c.RemapPending, c.ECCUncorrected, c.ProbeFails = 0, false, 0, false
	})
}

// Timeslice is the time-slice length in force on a GPU.
func (m *Machine) Timeslice(uuid string) (string, error) {
	if level := m.hardware.get(uuid).Timeslice; level != "" {
		return level, nil
	}
	return "default", nil
}

// SetTimeslice sets the time-slice length of a GPU.
func (m *Machine) SetTimeslice(uuid, level string) error {
	return m.hardware.change(uuid, func(s *settings) { s.Timeslice = level })
}

// Init fails as on a machine without a driver when the control file says so.
func (m *Machine) Init() nvml.Return {
	if m.control.get().NoNVML {
		return nvml.ERROR_LIBRARY_NOT_FOUND
	}
	if m.driver() != m.library {
		return nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	m.index()
	m.initialized.Add(1)
	return nvml.SUCCESS
}

// Shutdown undoes one Init.
func (m *Machine) Shutdown() nvml.Return {
	if m.initialized.Add(-1) < 0 {
		m.initialized.Store(0)
		return nvml.ERROR_UNINITIALIZED
	}
	return nvml.SUCCESS
}

// ErrorString describes a return code.
func (m *Machine) ErrorString(r nvml.Return) string {
	return fmt.Sprintf("NVML return code %d", int32(r))
}

// Extensions tells what the driver's library has.
func (m *Machine) Extensions() nvml.ExtendedInterface { return m }

// LookupSymbol fails for functions that the control file takes away.
func (m *Machine) LookupSymbol(name string) error {
	if slices.Contains(m.control.get().NoSymbols, name) {
		return fmt.Errorf("the driver's library has no %s", name)
	}
	var branch int
	if _, err := fmt.Sscanf(m.library, "%d.", &branch); err == nil && branch < memoryLimitsBranch && strings.HasSuffix(name, "MemoryLimits_v1") {
		return fmt.Errorf("the library of branch %d has no %s", branch, name)
	}
	return nil
}

// memoryLimitsBranch is the first that holds control groups to their memory.
const memoryLimitsBranch = 615

// call ends the process where the driver's library does not have a function, as
// the dynamic linker does.
func (m *Machine) call(symbol string) {
	if err := m.LookupSymbol(symbol); err != nil {
		panic("symbol lookup error: " + err.Error())
	}
}

// ready says whether NVML answers at all.
func (m *Machine) ready() nvml.Return {
	switch {
	case m.initialized.Load() == 0:
		return nvml.ERROR_UNINITIALIZED
	case m.control.get().NoNVML:
		return nvml.ERROR_DRIVER_NOT_LOADED
	case m.driver() != m.library:
		return nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	return nvml.SUCCESS
}

// driver is the version of the kernel module.
func (m *Machine) driver() string { return cmp.Or(m.control.get().Driver, m.topology.Driver) }

// SystemGetDriverVersion is the topology's.
func (m *Machine) SystemGetDriverVersion() (string, nvml.Return) {
	return m.driver(), m.ready()
}

// SystemGetNVMLVersion follows the driver's.
func (m *Machine) SystemGetNVMLVersion() (string, nvml.Return) {
	return "13." + m.topology.Driver, m.ready()
}

// SystemGetCudaDriverVersion is 1000 × major + 10 × minor.
func (m *Machine) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return m.topology.cudaInt, m.ready()
}

// DeviceGetCount counts the GPUs that are not missing.
func (m *Machine) DeviceGetCount() (int, nvml.Return) { return len(m.index()), m.ready() }

func (m *Machine) index() []*gpu {
	all := m.enumerated()
	m.indexed.Store(&all)
	return all
}

// DeviceGetHandleByIndex follows the control file's order of enumeration.
func (m *Machine) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if ret := m.ready(); ret != nvml.SUCCESS {
		return nil, ret
	}
	all := *m.indexed.Load()
	if index < 0 || index >= len(all) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	if ret := all[index].failure("DeviceGetHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	return all[index], nvml.SUCCESS
}

// DeviceGetHandleByUUID finds GPUs and MIG instances.
func (m *Machine) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	if ret := m.ready(); ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, g := range m.enumerated() {
		if g.uuid == uuid {
			return g, nvml.SUCCESS
		}
		for _, d := range g.migDevices() {
			if d.uuid() == uuid {
				return d, nvml.SUCCESS
			}
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// DeviceGetHandleByPciBusId finds GPUs.
func (m *Machine) DeviceGetHandleByPciBusId(id string) (nvml.Device, nvml.Return) {
	for _, g := range m.enumerated() {
		if g.bus == id {
			return g, m.ready()
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// EventSetCreate makes a set that hears of events from now on.
func (m *Machine) EventSetCreate() (nvml.EventSet, nvml.Return) {
	return &eventSet{EventSet: m.unsupported.events, machine: m}, m.ready()
}

// enumerated lists the GPUs that are not missing, in their present order.
func (m *Machine) enumerated() []*gpu {
	c := m.control.get()
	place := func(g *gpu) int {
		if at := slices.Index(c.Order, g.uuid); at >= 0 {
			return at
		}
		return len(c.Order) + g.number
	}
	var present []*gpu
	for _, g := range m.gpus {
		if !c.GPUs[g.uuid].Missing {
			present = append(present, g)
		}
	}
	slices.SortStableFunc(present, func(a, b *gpu) int { return place(a) - place(b) })
	return present
}
