// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Control is what happens to a simulated machine: the content of control.json.
// Whatever is absent is well. People and tests write it while the plugin runs.
type Control struct {
	// NoNVML makes NVML's initialization fail as on a machine without a driver.
	NoNVML bool `json:"no_nvml,omitempty"`
	// Driver is the version of the kernel module that runs now; empty is the
	// topology's. A Machine keeps the library that it began with, as a process does:
	// with another module it answers that the versions differ.
	Driver string `json:"driver,omitempty"`
	// NoSymbols names functions that the driver's library does not have.
	NoSymbols []string `json:"no_symbols,omitempty"`
	// Order lists UUIDs in the order of enumeration; GPUs left out follow in the
	// order of the topology.
	Order []string `json:"order,omitempty"`
	// NoDriver names vendors whose kernel driver is not loaded, Drivers the versions
	// of those that are, where it is not the usual one.
	NoDriver []string          `json:"no_driver,omitempty"`
	Drivers  map[string]string `json:"drivers,omitempty"`
	// Dmem gives the kernel control groups for the memory of devices.
	Dmem bool `json:"dmem,omitempty"`
	// Unified gives the machine cgroup v2 at /sys/fs/cgroup, in the eyes of NVIDIA's driver.
	Unified bool `json:"unified,omitempty"`
	// GPUs holds conditions by UUID.
	GPUs map[string]Condition `json:"gpus,omitempty"`
}

// gone reports whether a vendor's driver is not loaded.
func (c Control) gone(vendor string) bool { return slices.Contains(c.NoDriver, vendor) }

// Condition is what happens to one GPU.
type Condition struct {
	// Missing GPUs are not enumerated; lost ones are, and answer GPU_IS_LOST.
	Missing bool `json:"missing,omitempty"`
	Lost    bool `json:"lost,omitempty"`
	// Hang names NVML calls of the device that never return, such as
	// "GetMemoryInfo", or of DCMI, "dcmi_get_device_health"; "*" is all of them.
	Hang []string `json:"hang,omitempty"`
	// Errors gives calls the return code of NVML or DCMI that they fail with; "*" is
	// all.
	Errors map[string]int `json:"errors,omitempty"`
	// XIDs are the errors that the driver reported, oldest first: append to it.
	XIDs []uint64 `json:"xids,omitempty"`
	// XIDInstance is the UUID of the MIG instance that the XIDs concern; empty is the
	// whole GPU.
	XIDInstance string `json:"xid_instance,omitempty"`
	// FabricState is NVML's: 1 not started, 2 in progress; 0 gives a fabric that is
	// ready, where there is one. FabricStatus is the NVML return code of its end.
	FabricState  uint8  `json:"fabric_state,omitempty"`
	FabricStatus uint32 `json:"fabric_status,omitempty"`
	// Events are the driver's other events by NVML's numbers, oldest first, such
	// as 2 for an uncorrected ECC error: append to it.
	Events []uint64 `json:"events,omitempty"`
	// RecoveryAction is NVML's field of that name: 0 none, 1 GPU reset, 2 node
	// reboot, 3 drain P2P, 4 drain and reset.
	RecoveryAction uint64 `json:"recovery_action,omitempty"`
	// ProbeFails makes the probe with a CUDA program fail.
	ProbeFails     bool   `json:"probe_fails,omitempty"`
	RemapPending   bool   `json:"remap_pending,omitempty"`
	RemapFailed    bool   `json:"remap_failed,omitempty"`
	ECCUncorrected uint64 `json:"ecc_uncorrected,omitempty"`
	// Health is DCMI's grade of the worst of Faults, which are its codes in
	// hexadecimal: 1 minor, 2 major, 3 critical.
	Health uint32   `json:"health,omitempty"`
	Faults []string `json:"faults,omitempty"`
	// PassedFaults are codes with their grade, "80E01801:3", of faults that did not last,
	// oldest first: append to it.
	PassedFaults []string `json:"passed_faults,omitempty"`
	// LostPartitions are the numbers of a card's partitions that are not there.
	LostPartitions []int `json:"lost_partitions,omitempty"`
	// LinkErrors counts uncorrected errors of the links to other cards.
	LinkErrors uint64 `json:"link_errors,omitempty"`
	// EnergyJoules is a card's counter of energy.
	EnergyJoules uint64 `json:"energy_joules,omitempty"`
	// Uevents are the kernel's messages about a card, oldest first, such as
	// "WEDGED=rebind": append to it.
	Uevents []string `json:"uevents,omitempty"`
	// The readings; 0 gives a plausible idle value.
	TemperatureC  uint32    `json:"temperature_c,omitempty"`
	PowerWatts    uint32    `json:"power_watts,omitempty"`
	GPUPercent    uint32    `json:"gpu_percent,omitempty"`
	MemoryPercent uint32    `json:"memory_percent,omitempty"`
	Processes     []Process `json:"processes,omitempty"`
}

// Process is a program on a simulated GPU.
type Process struct {
	PID       uint32 `json:"pid"`
	MemoryMiB uint64 `json:"memory_mib"`
	// MPS marks a client of the GPU's MPS server.
	MPS bool `json:"mps,omitempty"`
	// Graphics marks a program that draws and does not compute, as a display server.
	Graphics bool `json:"graphics,omitempty"`
	// Percent is its use of compute.
	Percent uint32 `json:"percent,omitempty"`
	// BusySeconds is for how long engines of Intel's have worked for it.
	BusySeconds uint32 `json:"busy_seconds,omitempty"`
	// ClockSeconds is for how long the clock has run by which xe counts that.
	ClockSeconds uint32 `json:"clock_seconds,omitempty"`
	// Instance is the UUID of the MIG instance that it runs on.
	Instance string `json:"instance,omitempty"`
}

const controlFile = "control.json"

// ReadControl reads the control file of a simulator's folder; an absent one is
// an empty Control. Unknown fields are errors.
func ReadControl(dir string) (Control, error) {
	var c Control
	text, err := os.ReadFile(filepath.Join(dir, controlFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read simulator control: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Control{}, fmt.Errorf("read %s: %w", filepath.Join(dir, controlFile), err)
	}
	return c, nil
}

// WriteControl replaces the control file.
func WriteControl(dir string, c Control) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode simulator control: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write simulator control: %w", err)
	}
	return statedir.WriteFile(filepath.Join(dir, controlFile), text, 0o600)
}

// Update changes one GPU's condition in the control file.
func Update(dir, uuid string, change func(*Condition)) error {
	c, err := ReadControl(dir)
	if err != nil {
		return err
	}
	if c.GPUs == nil {
		c.GPUs = map[string]Condition{}
	}
	condition := c.GPUs[uuid]
	change(&condition)
	c.GPUs[uuid] = condition
	return WriteControl(dir, c)
}

// watchedControl reads the file again when it has changed. A file that cannot
// be read leaves the last good content in force.
type watchedControl struct {
	dir    string
	report func(error)

	mu      sync.Mutex
	current Control
	file    os.FileInfo // that was read last; nil: there was none
}

// sameState reports whether two looks at a file saw one state of it. What replaces a file
// in the same tick of the file system's clock is another file.
func sameState(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

func (w *watchedControl) get() Control {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, _ := os.Stat(filepath.Join(w.dir, controlFile)) // nil where there is none
	if sameState(now, w.file) {
		return w.current
	}
	w.file = now
	next, err := ReadControl(w.dir)
	if err != nil {
		w.report(err)
		return w.current
	}
	w.current = next
	return w.current
}

func (w *watchedControl) gpu(uuid string) Condition { return w.get().GPUs[uuid] }
