// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// MemoryLimits are what the driver holds a control group to on a GPU, in bytes.
type MemoryLimits struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// limitsFile holds them by GPU and control group. It is read for every question:
// other processes than the plugin's set limits.
const limitsFile = "memory-limits.json"

// limitsMu keeps this process's changes apart.
var limitsMu sync.Mutex

// ReadMemoryLimits reads the limits set on a simulated machine, by UUID and directory.
func ReadMemoryLimits(dir string) (map[string]map[string]MemoryLimits, error) {
	all := map[string]map[string]MemoryLimits{}
	text, err := os.ReadFile(filepath.Join(dir, limitsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read simulated memory limits: %w", err)
	}
	return all, json.Unmarshal(text, &all)
}

// Unified reports whether the machine has cgroup v2 where the driver looks.
func (m *Machine) Unified() bool { return m.control.get().Unified }

// limitable is what both calls answer before they look at the control group.
func (g *gpu) limitable(call, cgroup string) nvml.Return {
	g.machine.call("nvmlDevice" + call)
	if ret := g.failure(call); ret != nvml.SUCCESS {
		return ret
	}
	if g.kind.unified || !g.machine.Unified() || g.machine.hardware.get(g.uuid).MIG {
		return nvml.ERROR_NOT_SUPPORTED
	}
	if info, err := os.Stat(cgroup); err != nil || !info.IsDir() {
		return nvml.ERROR_OPERATING_SYSTEM
	}
	return nvml.SUCCESS
}

// SetMemoryLimits_v1 forgets a control group whose limits are those of none. The amount
// guaranteed to one that is removed stays, as the original leaves it in the groups above.
func (g *gpu) SetMemoryLimits_v1(cgroup string, soft, hard uint64) nvml.Return {
	if ret := g.limitable("SetMemoryLimits_v1", cgroup); ret != nvml.SUCCESS {
		return ret
	}
	total := g.kind.MemoryMB << 20
	if soft > hard || soft > total || hard != math.MaxUint64 && hard > total {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	limitsMu.Lock()
	defer limitsMu.Unlock()
	all, err := ReadMemoryLimits(g.machine.control.dir)
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	if all[g.uuid] == nil {
		all[g.uuid] = map[string]MemoryLimits{}
	}
	all[g.uuid][cgroup] = MemoryLimits{Soft: soft, Hard: hard}
	if soft == 0 && hard == math.MaxUint64 {
		delete(all[g.uuid], cgroup)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil || statedir.WriteFile(filepath.Join(g.machine.control.dir, limitsFile), text, 0o600) != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

// GetMemoryLimits_v1 does not find those of a control group that has none.
func (g *gpu) GetMemoryLimits_v1(cgroup string) (nvml.MemoryLimits_v1, nvml.Return) {
	none := nvml.MemoryLimits_v1{NameSpace: cgroup}
	if ret := g.limitable("GetMemoryLimits_v1", cgroup); ret != nvml.SUCCESS {
		return none, ret
	}
	all, err := ReadMemoryLimits(g.machine.control.dir)
	if err != nil {
		return none, nvml.ERROR_UNKNOWN
	}
	set, found := all[g.uuid][cgroup]
	if !found {
		return none, nvml.ERROR_NOT_FOUND
	}
	return nvml.MemoryLimits_v1{NameSpace: cgroup, SoftLimit: set.Soft, HardLimit: set.Hard}, nvml.SUCCESS
}
