package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// MemoryLimitsCommand is the first argument with which the task driver runs the
// plugin's binary, as the device's state says, to have NVIDIA's driver hold a control
// group to its memory:
//
//	nomad-device-gpu memory-limits DRIVER UUID CGROUP GUARANTEE-MIB LIMIT-MIB
//
// DRIVER is a limiterConfig.
const MemoryLimitsCommand = "memory-limits"

// limitsTimeout is how long one answer of NVML may take.
const limitsTimeout = 5 * time.Second

// limiterConfig says where the driver is, or the simulated machine.
type limiterConfig struct {
	Root         string             `json:"root,omitempty"`
	LibraryPaths []string           `json:"library_paths,omitempty"`
	Simulation   *config.Simulation `json:"simulation,omitempty"`
	BootID       string             `json:"boot_id,omitempty"`
}

// limiter is what the task driver runs for limits of memory.
func (r *reconciler) limiter() *gpu.MemoryLimiter {
	c := limiterConfig{Root: r.config.Driver.Root, LibraryPaths: r.config.Driver.LibraryPaths, Simulation: r.config.Simulation, BootID: r.platform.BootID}
	text, err := json.Marshal(c)
	self, problem := os.Executable()
	if err = errors.Join(err, problem); err != nil {
		r.logOnce.report("command for memory limits", err)
		return nil
	}
	return &gpu.MemoryLimiter{Command: []string{self, MemoryLimitsCommand, string(text)}}
}

// prepareMemoryLimits finds the slices whose memory the driver can hold.
func (r *reconciler) prepareMemoryLimits(units []*plan.Unit) {
	for _, u := range units {
		if r.config.MemoryLimits && u.Sharing.Mode == gpu.ModeSlice && u.Instance == nil && u.GPU.MemoryLimits && u.Unable() == "" {
			u.Limiter = r.limiter()
		}
	}
}

// RunMemoryLimits is that command; args are what comes after its name.
func RunMemoryLimits(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("%s: want DRIVER, UUID, CGROUP, a guarantee and a limit, got %q", MemoryLimitsCommand, args)
	}
	guarantee, err := strconv.ParseInt(args[3], 10, 64)
	limit, problem := strconv.ParseInt(args[4], 10, 64)
	if err = errors.Join(err, problem); err != nil {
		return fmt.Errorf("%s: read amounts: %w", MemoryLimitsCommand, err)
	}
	var c limiterConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return fmt.Errorf("%s: read %q: %w", MemoryLimitsCommand, args[0], err)
	}
	b, err := c.backend()
	if err != nil {
		return err
	}
	defer b.Close()
	return b.SetMemoryLimits(args[1], args[2], guarantee, limit)
}

func (c limiterConfig) backend() (*nvidia.Backend, error) {
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
func (c limiterConfig) simulated() (*sim.Machine, error) {
	topology, err := sim.ReadTopology(c.Simulation.Topology, c.Simulation.Machine)
	if err != nil {
		return nil, err
	}
	return sim.New(topology, sim.Options{Dir: c.Simulation.Dir, BootID: c.BootID})
}
