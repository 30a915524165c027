// SPDX-License-Identifier: MPL-2.0

// Package statedir keeps the state files through which the device plugin and
// the task driver of one node tell each other their present state.
//
//	<dir>/gpus/<uuid>.json     device → driver   gpu.GPUState, one per GPU or MIG instance
//	<dir>/usage.json           device → driver   gpu.Usage, what every task was measured to use
//	<dir>/leases/<id>.json     driver → device   gpu.Lease, one per task
//	<dir>/seats/<uuid>.json    driver → device   gpu.Seats, whose turn it is on a device with seats
//	<dir>/notices.json         driver → driver   gpu.Notices, what tasks were told
//	<dir>/driver.json          driver → device   gpu.DriverCounts, what the driver did since boot
//	<dir>/cdi/                 device → driver   CDI specs that the device plugin generated
//
// Each file has one writer, is replaced as a whole (temporary file, fsync,
// rename) and can be read at any moment. The directory belongs in /run: its content
// holds for one boot, and files of another boot ID count as absent.
package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Default is where both plugins look unless configured otherwise.
const Default = "/run/nomad-gpu"

// ErrNotFound means that there is no such state of this boot.
var ErrNotFound = errors.New("no such state")

const (
	gpuDir   = "gpus"
	leaseDir = "leases"
	seatDir  = "seats"
	cdiDir   = "cdi"
	usageJSN = "usage.json"
	noticesJ = "notices.json"
	countsJ  = "driver.json"
	suffix   = ".json"
)

// Dir is a node's state directory, seen from one boot of the machine.
type Dir struct {
	path, bootID string
}

// Open makes the directory where it is missing. Only root may look inside: the
// files tell who runs what.
func Open(path, bootID string) (*Dir, error) {
	if bootID == "" {
		return nil, fmt.Errorf("open state directory %q: the boot ID is empty", path)
	}
	for _, sub := range []string{gpuDir, leaseDir, seatDir, cdiDir} {
		if err := os.MkdirAll(filepath.Join(path, sub), 0o700); err != nil {
			return nil, fmt.Errorf("open state directory: %w", err)
		}
	}
	return &Dir{path: path, bootID: bootID}, nil
}

// BootID reads the kernel's identifier of this boot.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// CDIDir is the folder for generated CDI specs.
func (d *Dir) CDIDir() string { return filepath.Join(d.path, cdiDir) }

// WriteGPU publishes a device's state, stamped with version and boot.
func (d *Dir) WriteGPU(s gpu.GPUState) error {
	s.Version, s.BootID = gpu.StateVersion, d.bootID
	return writeJSON(d.file(gpuDir, s.UUID), s)
}

// RemoveGPU withdraws a device's state; it is not an error if there is none.
func (d *Dir) RemoveGPU(uuid string) error { return remove(d.file(gpuDir, uuid)) }

// GPU reads one device's state. It returns ErrNotFound when there is none of
// this boot.
func (d *Dir) GPU(uuid string) (gpu.GPUState, error) {
	return readState[gpu.GPUState](d, d.file(gpuDir, uuid))
}

// GPUs reads all devices' states. Files that cannot be read are left out and
// named in the error; the rest is valid all the same.
func (d *Dir) GPUs() ([]gpu.GPUState, error) { return readAll[gpu.GPUState](d, gpuDir) }

// WriteUsage publishes what tasks were measured to use.
func (d *Dir) WriteUsage(u gpu.Usage) error {
	u.Version, u.BootID = gpu.StateVersion, d.bootID
	return writeJSON(filepath.Join(d.path, usageJSN), u)
}

// Usage reads the latest measurement, or returns ErrNotFound.
func (d *Dir) Usage() (gpu.Usage, error) {
	return readState[gpu.Usage](d, filepath.Join(d.path, usageJSN))
}

// WriteNotices records what tasks were told of their GPUs.
func (d *Dir) WriteNotices(n gpu.Notices) error {
	n.Version, n.BootID = gpu.StateVersion, d.bootID
	return writeJSON(filepath.Join(d.path, noticesJ), n)
}

// Notices reads what tasks were told, or returns ErrNotFound.
func (d *Dir) Notices() (gpu.Notices, error) {
	return readState[gpu.Notices](d, filepath.Join(d.path, noticesJ))
}

// WriteSeats records whose turn it is on a device.
func (d *Dir) WriteSeats(s gpu.Seats) error {
	s.Version, s.BootID = gpu.StateVersion, d.bootID
	return writeJSON(d.file(seatDir, s.UUID), s)
}

// Seats reads whose turn it is on a device, or returns ErrNotFound.
func (d *Dir) Seats(uuid string) (gpu.Seats, error) {
	return readState[gpu.Seats](d, d.file(seatDir, uuid))
}

// SeatLock is the file that a program holds which moves tasks of a device.
func (d *Dir) SeatLock(uuid string) string { return filepath.Join(d.path, seatDir, uuid+".lock") }

// WriteDriverCounts publishes what the driver did since the machine booted.
func (d *Dir) WriteDriverCounts(c gpu.DriverCounts) error {
	c.Version, c.BootID = gpu.StateVersion, d.bootID
	return writeJSON(filepath.Join(d.path, countsJ), c)
}

// DriverCounts reads what the driver did, or returns ErrNotFound.
func (d *Dir) DriverCounts() (gpu.DriverCounts, error) {
	return readState[gpu.DriverCounts](d, filepath.Join(d.path, countsJ))
}

// WriteLease records that a task holds slices.
func (d *Dir) WriteLease(l gpu.Lease) error {
	l.Version, l.BootID = gpu.StateVersion, d.bootID
	return writeJSON(d.file(leaseDir, l.ID), l)
}

// RemoveLease forgets a task; it is not an error if there is none.
func (d *Dir) RemoveLease(id string) error { return remove(d.file(leaseDir, id)) }

// Lease reads one task's lease, or returns ErrNotFound.
func (d *Dir) Lease(id string) (gpu.Lease, error) {
	return readState[gpu.Lease](d, d.file(leaseDir, id))
}

// Leases reads the leases of this boot. Files that cannot be read are left out
// and named in the error: whoever must not take a used GPU for a free one stops
// there.
func (d *Dir) Leases() ([]gpu.Lease, error) { return readAll[gpu.Lease](d, leaseDir) }

func (d *Dir) file(sub, name string) string { return filepath.Join(d.path, sub, name+suffix) }

func readAll[T any](d *Dir, sub string) ([]T, error) {
	entries, err := os.ReadDir(filepath.Join(d.path, sub))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", sub, err)
	}
	var all []T
	var problems []error
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		one, err := readState[T](d, filepath.Join(d.path, sub, entry.Name()))
		switch {
		case err == nil:
			all = append(all, one)
		case !errors.Is(err, ErrNotFound):
			problems = append(problems, err)
		}
	}
	return all, errors.Join(problems...)
}

func readState[T any](d *Dir, path string) (T, error) {
	var state, zero T
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return zero, fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	if err != nil {
		return zero, fmt.Errorf("read state: %w", err)
	}
	// The header says whether this release can read the rest.
	var header struct {
		Version int    `json:"version"`
		BootID  string `json:"boot_id"`
	}
	if err := json.Unmarshal(text, &header); err != nil {
		return zero, fmt.Errorf("read state %s: %w", path, err)
	}
	if header.BootID != d.bootID {
		return zero, fmt.Errorf("%s is of another boot: %w", path, ErrNotFound)
	}
	if header.Version < 1 || header.Version > gpu.StateVersion {
		return zero, fmt.Errorf("state %s has version %d, this release reads 1 to %d", path, header.Version, gpu.StateVersion)
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return zero, fmt.Errorf("read state %s: %w", path, err)
	}
	return state, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}
