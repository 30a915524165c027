// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

// cgroupRoot is where the driver looks for control groups.
const cgroupRoot = "/sys/fs/cgroup"

// noLimit is NVML's hard limit of who has none.
const noLimit = math.MaxUint64

// canLimitMemory reports whether the driver holds the memory of control groups on a
// GPU: branch 615 and later, where cgroup v2 is mounted, and not with MIG.
func (b *Backend) canLimitMemory(d nvml.Device) bool {
	if !b.has(symbolSetMemoryLimits) || !b.has(symbolGetMemoryLimits) || !b.unified() {
		return false
	}
	if mode, _, ret := d.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		return false
	}
	// The root has no limits of its own.
	_, ret := d.GetMemoryLimits_v1(cgroupRoot)
	return ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_FOUND
}

// SetMemoryLimits holds all processes of a control group, by its directory, to an
// amount of a GPU's memory, with a part that is theirs whatever others want. It reads
// back whether that is in force.
//
// The driver adds the guarantee to the groups above, and does not see that a group
// is removed: before that the guarantee must be 0.
func (b *Backend) SetMemoryLimits(uuid, cgroup string, guaranteeMiB, limitMiB int64) error {
	if !b.has(symbolSetMemoryLimits) || !b.has(symbolGetMemoryLimits) {
		return fmt.Errorf("set the memory limits of %s on %s: the driver is too old for that; branch 615 has it", cgroup, uuid)
	}
	type outcome struct {
		now      nvml.MemoryLimits_v1
		set, got nvml.Return
	}
	o, err := on(b, uuid, uuid, func(d nvml.Device) (o outcome) {
		if o.set = d.SetMemoryLimits_v1(cgroup, uint64(guaranteeMiB)<<20, uint64(limitMiB)<<20); o.set == nvml.SUCCESS {
			o.now, o.got = d.GetMemoryLimits_v1(cgroup)
		}
		return o
	})
	switch {
	case err != nil:
		return err
	case o.set != nvml.SUCCESS:
		return fmt.Errorf("set the memory limits of %s on %s: %w", cgroup, uuid, returnError(o.set))
	case o.got != nvml.SUCCESS:
		return fmt.Errorf("read the memory limits of %s on %s: %w", cgroup, uuid, returnError(o.got))
	case o.now.HardLimit == noLimit:
		return fmt.Errorf("the memory of %s on %s is not limited after a limit of %d MiB was set", cgroup, uuid, limitMiB)
	}
	return nil
}

// unifiedCgroups reports whether cgroup v2 is mounted where the driver looks.
func unifiedCgroups() bool {
	var fs unix.Statfs_t
	return unix.Statfs(cgroupRoot, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}
