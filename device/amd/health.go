// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"context"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// rasBlocks are the parts of a GPU that count errors, and what an uncorrected one
// means. Corrected errors are the hardware's business.
var rasBlocks = []struct{ file, code, what string }{
	{"umc_err_count", "ras-memory", "memory"},
	{"gfx_err_count", "ras-compute", "compute units"},
	{"sdma_err_count", "ras-copy", "copy engines"},
	{"mmhub_err_count", "ras-memory-hub", "memory hub"},
	{"pcie_bif_err_count", "ras-pcie", "PCIe interface"},
	{"xgmi_wafl_err_count", "ras-xgmi", "XGMI links"},
}

// health reads what a GPU knows to be wrong with itself.
func (b *Backend) health(dir string) []hardware.Problem {
	var problems []hardware.Problem
	for _, block := range rasBlocks {
		if n := b.uncorrected(dir, block.file); n > 0 {
			problems = append(problems, hardware.Problem{Code: block.code, Fatal: block.code != "ras-xgmi",
				Message: "the " + block.what + " had uncorrected errors since the driver was loaded",
				Action:  "stop its tasks and reset the GPU (amd-smi reset --gpureset); if it happens again, replace the GPU"})
		}
	}
	return append(problems, b.badPages(dir)...)
}

// uncorrected is a block's count of uncorrected errors; absent where the GPU has no
// such counter.
func (b *Backend) uncorrected(dir, file string) int64 {
	text, _ := b.tree.Text(dir, "ras", file)
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(name) == "ue" {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil && n >= 0 {
				return n
			}
		}
	}
	return hardware.Absent
}

// badPages finds pages of memory that are to be retired with the next reset, or could
// not be.
func (b *Backend) badPages(dir string) []hardware.Problem {
	text, _ := b.tree.Text(dir, "ras", "gpu_vram_bad_pages")
	pending, failed := false, false
	for line := range strings.Lines(text) {
		fields := strings.Split(line, ":")
		state := strings.TrimSpace(fields[len(fields)-1])
		pending, failed = pending || len(fields) == 3 && state == "P", failed || len(fields) == 3 && state == "F"
	}
	switch {
	case failed:
		return []hardware.Problem{{Code: "page-retirement-failed", Message: "a broken page of memory could not be retired", Action: "replace the GPU"}}
	case pending:
		return []hardware.Problem{{Code: "page-retirement-pending", Message: "a broken page of memory waits to be retired",
			Action: "stop its tasks and reset the GPU (amd-smi reset --gpureset)"}}
	}
	return nil
}

// Watch hears the kernel's messages about the GPUs until the context ends.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	byPCI := map[string]string{}
	for _, uuid := range uuids {
		if s, known := b.found.Lookup(uuid); known {
			byPCI[s.card.first().pci()] = uuid
		}
	}
	return b.listen(ctx, func(u sysfs.Uevent) {
		uuid := byPCI[u.PCI()]
		if uuid == "" {
			return
		}
		if e, told := eventOf(u); told {
			e.UUID, e.GI, e.CI = uuid, hardware.Absent, hardware.Absent
			emit(e)
		}
	})
}

// eventOf reads a message: the driver tells that it has reset a GPU, or that it has
// given it up and what would bring it back (kernel 6.15 on).
func eventOf(u sysfs.Uevent) (hardware.Event, bool) {
	wedged, told := u.Values["WEDGED"]
	switch {
	case told && wedged == "none":
		return hardware.Event{Name: "GPU reset", Problem: hardware.Problem{Code: hardware.EventCode + "gpu-reset", Fatal: true,
			Message: "the driver has reset the GPU, and ended what ran on it", Action: "nothing: it is healthy again when its tasks have ended and it answers"}}, true
	case told:
		return hardware.Event{Name: "GPU wedged", Problem: hardware.Problem{Code: hardware.EventCode + "gpu-wedged", Fatal: true,
			Message: "the driver has given the GPU up", Action: "stop its tasks, then do what the kernel asks for (" + wedged + "), or reboot the node"}}, true
	case u.Action == "add" || u.Action == "remove" || u.Action == "bind" || u.Action == "unbind":
		return hardware.Event{Name: "device " + u.Action}, true // the next survey sees it
	}
	return hardware.Event{}, false
}
