// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"os"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Absence is the report about NVIDIA's driver, and about every known GPU, when a
// survey has failed.
func (b *Backend) Absence(err error) hardware.Driver {
	mismatch := errors.Is(err, ErrMismatch)
	d := hardware.Driver{Outdated: mismatch || b.replaced()}
	if mismatch {
		upgraded := mismatched()
		d.Absent = &upgraded
		return d
	}
	if errors.Is(err, guard.ErrHangs) {
		late := hanging("node")
		d.Absent = &late
		return d
	}
	d.Absent = &hardware.Problem{Code: "nvml-absent", Message: "NVML is not available",
		Action: "install or load the NVIDIA driver; it is healthy again when NVML answers"}
	return d
}

// mismatched is the problem of a driver that was upgraded under its library.
func mismatched() hardware.Problem {
	return hardware.Problem{Code: "driver-mismatch", Message: ErrMismatch.Error(),
		Action: "after an upgrade of the driver, reload its kernel modules or reboot the node; the plugin begins anew by itself"}
}

// replaced reports whether the driver's library was replaced on disk since this
// process loaded it: containers get the new one, and only a new process sees it.
func (b *Backend) replaced() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err == nil && deletedLibrary(string(maps))
}

func deletedLibrary(maps string) bool {
	for line := range strings.Lines(maps) {
		if strings.Contains(line, "libnvidia-ml.so") && strings.HasSuffix(strings.TrimSpace(line), "(deleted)") {
			return true
		}
	}
	return false
}
