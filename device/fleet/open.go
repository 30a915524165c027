// SPDX-License-Identifier: MPL-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/amd"
	"github.com/nomad-gpu/nomad-gpu/device/ascend"
	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/intel"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// probeTimeout is how long a CUDA program may take to show that a GPU works:
// the first context on a GPU of a large machine takes seconds.
const probeTimeout = 30 * time.Second

// Open finds the machine's hardware, or makes the simulated one.
func Open(log hclog.Logger, c *config.Config) (*Platform, error) {
	bootID, err := statedir.BootID()
	if err != nil {
		return nil, err
	}
	if c.Simulation != nil {
		return openSimulation(log, c, bootID)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	var backends []*backend
	if c.Vendors[nvidia.Vendor] {
		backends = append(backends, nvidiaBackend(log, c, self))
	}
	options := sysfs.Options{Root: "/", Timeout: c.Health.Timeout}
	if c.Vendors[amd.Vendor] {
		b := amd.New(options)
		backends = append(backends, &backend{vendor: amd.Vendor, observer: b, prober: b, partitioner: b, cdi: b, close: b.Close})
	}
	if c.Vendors[intel.Vendor] {
		b := intel.New(options)
		backends = append(backends, &backend{vendor: intel.Vendor, observer: b, prober: b, cdi: b, close: b.Close})
	}
	if c.Vendors[ascend.Vendor] {
		b := ascend.New(options)
		backends = append(backends, &backend{vendor: ascend.Vendor, observer: b, prober: b, partitioner: b, cdi: b, close: b.Close})
	}
	return newPlatform(bootID, []string{"/etc/cdi", "/var/run/cdi"}, backends...), nil
}

// nvidiaBackend is that of this machine's NVIDIA GPUs.
func nvidiaBackend(log hclog.Logger, c *config.Config, self string) *backend {
	lib := nvidia.Driver(c.Driver).Library()
	nvml, smi := nvidia.New(lib, c.Health.Timeout), nvidia.SMI{Program: nvidia.Driver(c.Driver).Program(c.NvidiaSMI)}
	return &backend{
		vendor:      nvidia.Vendor,
		observer:    nvml,
		prober:      nvidia.Prober{Self: self, Timeout: probeTimeout, LibraryPath: nvidia.Driver(c.Driver).LibraryPath(), Exec: mps.ExecCommand},
		timeslicer:  smi,
		moder:       nvml,
		resetter:    smi,
		partitioner: nvml,
		recutter:    nvml,
		cdi:         nvidia.CDI{Library: lib, Driver: nvidia.Driver(c.Driver), Log: log, Hook: cmp.Or(c.CDIHook, self)},
		close:       nvml.Close,
	}
}

func openSimulation(log hclog.Logger, c *config.Config, bootID string) (*Platform, error) {
	topology, err := sim.ReadTopology(c.Simulation.Topology, c.Simulation.Machine)
	if err != nil {
		return nil, err
	}
	if c.Simulation.BootID != "" {
		bootID = c.Simulation.BootID
	}
	options := sim.Options{Dir: c.Simulation.Dir, BootID: bootID, DCMI: c.Simulation.DCMI, Report: func(err error) {
		log.Error("the simulator keeps to what it read before", "error", err)
	}}
	log.Warn("the GPUs are simulated", "topology", c.Simulation.Topology, "machine", topology.Name)
	var backends []*backend
	if len(topology.GPUs) > 0 || len(topology.Cards) == 0 {
		machine, err := sim.New(topology, options)
		if err != nil {
			return nil, err
		}
		nvml := nvidia.New(machine, c.Health.Timeout)
		cdi, err := simulatedSpecs(log, c, machine)
		if err != nil {
			return nil, err
		}
		backends = append(backends, &backend{vendor: nvidia.Vendor, observer: nvml, prober: machine, timeslicer: machine, moder: nvml, resetter: machine,
			partitioner: nvml, recutter: nvml, cdi: cdi, close: nvml.Close})
	}
	if len(topology.Cards) > 0 {
		kernel, err := sim.NewKernel(topology, options)
		if err != nil {
			return nil, err
		}
		backends = append(backends, simulatedCards(c, kernel)...)
	}
	return newPlatform(bootID, nil, slices.DeleteFunc(backends, func(b *backend) bool { return !c.Vendors[b.vendor] })...), nil
}

// simulatedCards are the backends of a simulated machine's devices of other vendors.
func simulatedCards(c *config.Config, kernel *sim.Kernel) []*backend {
	listen := func(ctx context.Context, emit func(sysfs.Uevent)) error {
		return kernel.Listen(ctx, func(message []byte) {
			if u, ok := sysfs.ParseUevent(message); ok {
				emit(u)
			}
		})
	}
	options := sysfs.Options{Root: kernel.Root(), Timeout: c.Health.Timeout, Refresh: kernel.Refresh, Listen: listen}
	a := amd.New(options)
	i := intel.New(options)
	h := ascend.New(options)
	return []*backend{
		{vendor: ascend.Vendor, observer: h, prober: kernel, partitioner: h, cdi: h, close: h.Close},
		{vendor: amd.Vendor, observer: a, prober: kernel, partitioner: kernel, cdi: a, close: a.Close},
		{vendor: intel.Vendor, observer: i, prober: kernel, cdi: i, close: i.Close},
	}
}

// simulatedSpecs makes the specs of a simulated machine; where a driver's files are
// there (driver_root), as on a real one.
func simulatedSpecs(log hclog.Logger, c *config.Config, machine *sim.Machine) (CDISource, error) {
	if c.Driver.Root == "/" {
		return simulatedCDI{machine: machine}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	return nvidia.CDI{Library: machine, Driver: nvidia.Driver(c.Driver), Log: log, Hook: cmp.Or(c.CDIHook, self)}, nil
}

// simulatedCDI makes specs of a simulated machine's device nodes, and checks specs as
// on a real one.
type simulatedCDI struct {
	nvidia.CDI
	machine *sim.Machine
}

func (s simulatedCDI) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	return s.machine.CDISpec(kind, uuids)
}
