// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// ReservationVersion is the version of the environment contract that this
// release writes. Readers accept every version up to it.
const ReservationVersion = 1

// reservationPrefix starts the environment keys that carry reservations.
const reservationPrefix = "NOMAD_GPU_"

// Reservation is what one device block of a task was given: identity only. The
// device plugin writes it into the task's environment when Nomad reserves
// instances; Nomad keeps it for the life of the allocation, across restarts,
// reboots and upgrades. So it says which slices, never where a GPU is reached
// or whether it may be used: that is a GPUState's business.
type Reservation struct {
	Version int              `json:"v"`
	Vendor  string           `json:"vendor"`
	Devices []ReservedDevice `json:"devices"`
}

// ReservedDevice is the part of a reservation that lies on one GPU or MIG
// instance.
type ReservedDevice struct {
	UUID string `json:"uuid"`
	// Mode is how the device was offered: ModeWhole, ModeSlice or ModeShared.
	Mode Mode `json:"mode"`
	// Slices are the numbers of the reserved slices or replicas, ascending, and Of
	// is how many the device had. Both are empty for ModeWhole.
	Slices []int `json:"slices,omitempty"`
	Of     int   `json:"of,omitempty"`
	// MemoryMiB is what the slices add up to; 0 for ModeShared, which promises
	// no memory.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// Milli is the compute in proportion to the memory; 0 for ModeShared.
	Milli int64 `json:"milli,omitempty"`
	// BurstMilli is the highest compute limit that the operator allows a task
	// on this device.
	BurstMilli int64 `json:"burst_milli,omitempty"`
}

// Whole reports whether the task holds all of the device, as one instance or as
// all its slices. Such a task runs without a sharing mechanism and its limits.
func (d ReservedDevice) Whole() bool {
	return d.Mode == ModeWhole || d.Mode == ModeSlice && d.Of > 0 && len(d.Slices) == d.Of
}

// EnvKey is the environment variable that carries r. It is unique among the
// reservations of a task, because two of them never hold the same first slice.
func (r Reservation) EnvKey() string {
	if len(r.Devices) == 0 {
		return ""
	}
	d, slice := r.Devices[0], 0
	if len(d.Slices) > 0 {
		slice = d.Slices[0]
	}
	return fmt.Sprintf("%s%s_%d", reservationPrefix, shortUUID(d.UUID), slice)
}

// EnvValue is r as text; it has no line breaks and no "$" or "%" that a shell
// or Nomad's interpolation would touch.
func (r Reservation) EnvValue() (string, error) {
	if err := r.validate(); err != nil {
		return "", err
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// nvidiaUUID is how NVIDIA writes the UUIDs of GPUs and MIG instances, the latter in the
// older form with two numbers behind as well. It finds the first eight digits.
var nvidiaUUID = regexp.MustCompile(`^(?:MIG-)?(?:GPU-)?([0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:/[0-9]+/[0-9]+)?$`)

// shortUUID is the first eight digits of NVIDIA's UUIDs after their prefix:
// "GPU-1a2b3c4d-…" gives "1a2b3c4d", "MIG-GPU-1a…" and "MIG-1a…" likewise. What other
// vendors' devices are called can begin alike: of those it is a digest.
func shortUUID(uuid string) string {
	if found := nvidiaUUID.FindStringSubmatch(uuid); found != nil {
		return found[1]
	}
	sum := sha256.Sum256([]byte(uuid))
	return hex.EncodeToString(sum[:4])
}

// ReservationsFromEnv finds and reads every reservation in the environment that
// Nomad's device hook gave a task, ordered by key. Only that environment may be
// passed: image, task and template are in the user's hand.
func ReservationsFromEnv(deviceEnv map[string]string) ([]Reservation, error) {
	keys := make([]string, 0, len(deviceEnv))
	for key := range deviceEnv {
		if strings.HasPrefix(key, reservationPrefix) {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	found := make([]Reservation, 0, len(keys))
	for _, key := range keys {
		r, err := parseReservation(deviceEnv[key])
		if err != nil {
			return nil, fmt.Errorf("read device reservation %s: %w", key, err)
		}
		found = append(found, r)
	}
	return found, nil
}

// IsReservationKey reports whether an environment key belongs to the contract,
// so that it can be kept out of what a user sets.
func IsReservationKey(key string) bool { return strings.HasPrefix(key, reservationPrefix) }

func parseReservation(text string) (Reservation, error) {
	var r Reservation
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Reservation{}, fmt.Errorf("decode %q: %w", text, err)
	}
	return r, r.validate()
}

func (r Reservation) validate() error {
	if r.Version < 1 || r.Version > ReservationVersion {
		return fmt.Errorf("reservation has version %d, this release reads 1 to %d", r.Version, ReservationVersion)
	}
	if len(r.Devices) == 0 {
		return fmt.Errorf("reservation names no device")
	}
	for _, d := range r.Devices {
		if err := d.validate(); err != nil {
			return fmt.Errorf("reservation of %q: %w", d.UUID, err)
		}
	}
	return nil
}

func (d ReservedDevice) validate() error {
	switch {
	case d.UUID == "":
		return fmt.Errorf("a device has no UUID")
	case d.Mode == ModeWhole && len(d.Slices) > 0:
		return fmt.Errorf("a whole device cannot have slices")
	case d.Mode == ModeWhole:
		return nil
	case d.Mode != ModeSlice && d.Mode != ModeShared:
		return fmt.Errorf("mode %q is not one of %s, %s, %s", d.Mode, ModeWhole, ModeSlice, ModeShared)
	case len(d.Slices) == 0:
		return fmt.Errorf("mode %s needs slices", d.Mode)
	case !slices.IsSorted(d.Slices) || d.Slices[0] < 0 || len(slices.Compact(slices.Clone(d.Slices))) != len(d.Slices):
		return fmt.Errorf("slices %v are not distinct and ascending from 0", d.Slices)
	case d.Slices[len(d.Slices)-1] >= d.Of:
		return fmt.Errorf("slice %d is beyond the device's %d", d.Slices[len(d.Slices)-1], d.Of)
	case d.MemoryMiB < 0 || d.Milli < 0 || d.Milli > MilliPerGPU || d.BurstMilli < 0 || d.BurstMilli > MilliPerGPU:
		return fmt.Errorf("memory %d MiB, compute %d and burst %d milli are out of range", d.MemoryMiB, d.Milli, d.BurstMilli)
	}
	return nil
}

// MergeDevices joins several reservations of one task into one entry per
// device, in order of UUID: Nomad may serve two device blocks from one GPU.
// Slices, memory and compute of the same device add up.
func MergeDevices(rs []Reservation) ([]ReservedDevice, error) {
	byUUID := map[string]ReservedDevice{}
	for _, r := range rs {
		for _, d := range r.Devices {
			have, ok := byUUID[d.UUID]
			if !ok {
				d.Slices = slices.Clone(d.Slices)
				byUUID[d.UUID] = d
				continue
			}
			if have.Mode == ModeWhole || have.Mode != d.Mode || have.Of != d.Of {
				return nil, fmt.Errorf("device %q is reserved twice, as %s and as %s", d.UUID, have.Mode, d.Mode)
			}
			have.Slices = append(have.Slices, d.Slices...)
			slices.Sort(have.Slices)
			have.MemoryMiB += d.MemoryMiB
			have.Milli += d.Milli
			have.BurstMilli = min(have.BurstMilli, d.BurstMilli)
			byUUID[d.UUID] = have
		}
	}
	merged := make([]ReservedDevice, 0, len(byUUID))
	for _, d := range byUUID {
		if err := d.validate(); err != nil {
			return nil, fmt.Errorf("reservations of device %q: %w", d.UUID, err)
		}
		merged = append(merged, d)
	}
	slices.SortFunc(merged, func(a, b ReservedDevice) int { return strings.Compare(a.UUID, b.UUID) })
	return merged, nil
}
