// SPDX-License-Identifier: MPL-2.0

package subcommand

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// MemoryLimits is the first argument with which the task driver runs the
// plugin's binary, as the device's state says, to have NVIDIA's driver hold a control
// group to its memory:
//
//	nomad-device-gpu memory-limits DRIVER UUID CGROUP GUARANTEE-MIB LIMIT-MIB
//
// DRIVER is a driverConfig.
const MemoryLimits = "memory-limits"

// limitsTimeout is how long one answer of NVML may take.
const limitsTimeout = 5 * time.Second

// driverConfig says where the driver is, or the simulated machine.
type driverConfig struct {
	Root         string             `json:"root,omitempty"`
	LibraryPaths []string           `json:"library_paths,omitempty"`
	Simulation   *config.Simulation `json:"simulation,omitempty"`
	BootID       string             `json:"boot_id,omitempty"`
}

// Limiter is what the task driver runs for limits of memory.
func Limiter(c *config.Config, bootID string) (*gpu.MemoryLimiter, error) {
	command, err := commandLine(MemoryLimits, c, bootID)
	return &gpu.MemoryLimiter{Command: command}, err
}

// commandLine is that of a command of this binary, up to the driver.
func commandLine(name string, c *config.Config, bootID string) ([]string, error) {
	text, err := json.Marshal(driverConfig{Root: c.Driver.Root, LibraryPaths: c.Driver.LibraryPaths, Simulation: c.Simulation, BootID: bootID})
	self, problem := os.Executable()
	return []string{self, name, string(text)}, errors.Join(err, problem)
}

// RunMemoryLimits is that command; args are what comes after its name.
func RunMemoryLimits(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("%s: want DRIVER, UUID, CGROUP, a guarantee and a limit, got %q", MemoryLimits, args)
	}
	guarantee, err := strconv.ParseInt(args[3], 10, 64)
	limit, problem := strconv.ParseInt(args[4], 10, 64)
	if err = errors.Join(err, problem); err != nil {
		return fmt.Errorf("%s: read amounts: %w", MemoryLimits, err)
	}
	var c driverConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return fmt.Errorf("%s: read %q: %w", MemoryLimits, args[0], err)
	}
	b, err := c.backend()
	if err != nil {
		return err
	}
	defer b.Close()
	return b.SetMemoryLimits(args[1], args[2], guarantee, limit)
}

func (c driverConfig) backend() (*nvidia.Backend, error) {
	if c.Simulation == nil {
		return nvidia.New(nvidia.Driver{Root: c.Root, LibraryPaths: c.LibraryPaths}.Library(), limitsTimeout), nil
	}
	machine, err := c.simulated()
	if err != nil {
		return nil, err
	}
	return nvidia.New(machine, limitsTimeout), nil
}

// simulated is the machine that the plugin simulates.
func (c driverConfig) simulated() (*sim.Machine, error) {
	topology, err := sim.ReadTopology(c.Simulation.Topology, c.Simulation.Machine)
	if err != nil {
		return nil, err
	}
	return sim.New(topology, sim.Options{Dir: c.Simulation.Dir, BootID: c.BootID})
}
