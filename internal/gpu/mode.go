// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strings"
)

// MilliPerGPU is the compute of one whole device.
const MilliPerGPU = 1000

// Mode is how one device is offered to Nomad.
type Mode string

const (
	// ModeWhole offers the device as one exclusive instance.
	ModeWhole Mode = "whole"
	// ModeSlice offers the device's memory in fixed amounts, counted by Nomad.
	ModeSlice Mode = "slice"
	// ModeShared offers replicas of the device, without any memory accounting.
	ModeShared Mode = "shared"
	// ModeMIG, of a physical GPU, offers its MIG instances. A MIG instance has
	// a mode of its own: ModeWhole, ModeSlice or ModeShared.
	ModeMIG Mode = "mig"
	// ModePartition is that for other vendors' GPUs: it offers the partitions.
	ModePartition Mode = "partition"
)

// modes holds every mode, in the order in which help texts name them.
var modes = []Mode{ModeWhole, ModeSlice, ModeShared, ModeMIG, ModePartition}

// InParts reports whether a device in this mode is offered as its parts alone.
func (m Mode) InParts() bool { return m == ModeMIG || m == ModePartition }

// ParseMode reads a mode as written in a configuration.
func ParseMode(s string) (Mode, error) { return parseWord("mode", s, modes) }

// Sharing is what keeps the tasks on one device apart.
type Sharing string

const (
	// SharingMPS limits memory and threads per client of a CUDA MPS daemon.
	SharingMPS Sharing = "mps"
	// SharingTimeslice lets tasks take turns; the driver decides who is next.
	SharingTimeslice Sharing = "timeslice"
	// SharingHAMi limits through HAMi-core's interception library.
	SharingHAMi Sharing = "hami"
	// SharingDmem limits the memory of a task by control groups of the kernel.
	SharingDmem Sharing = "dmem"
	// SharingSuspend lets tasks step aside for each other: the memory of those that wait is
	// on the host.
	SharingSuspend Sharing = "suspend"
	// SharingNone applies no mechanism.
	SharingNone Sharing = "none"
)

var sharings = []Sharing{SharingMPS, SharingTimeslice, SharingHAMi, SharingDmem, SharingSuspend, SharingNone}

// ParseSharing reads a sharing mechanism as written in a configuration.
func ParseSharing(s string) (Sharing, error) { return parseWord("sharing", s, sharings) }

// Grade says how hard an isolation is.
type Grade string

const (
	// GradeHardware is separated by the device itself (a whole GPU, MIG).
	GradeHardware Grade = "hardware"
	// GradeEnforced is a limit that the program cannot undo.
	GradeEnforced Grade = "enforced"
	// GradeCooperative is a limit that a determined program can undo.
	GradeCooperative Grade = "cooperative"
	// GradeNone is no separation at all.
	GradeNone Grade = "none"
)

// Grade reports how hard tasks that share a device through s are kept apart.
// MPS and HAMi-core read their limits from the environment of the very program
// that they limit, so neither is a security boundary. Control groups are the
// kernel's: of memory, no program gets more.
func (s Sharing) Grade() Grade {
	switch s {
	case SharingDmem:
		return GradeEnforced
	case SharingMPS, SharingHAMi:
		return GradeCooperative
	default:
		return GradeNone
	}
}

func parseWord[T ~string](key, s string, valid []T) (T, error) {
	names := make([]string, len(valid))
	for i, v := range valid {
		if s == string(v) {
			return v, nil
		}
		names[i] = string(v)
	}
	return "", fmt.Errorf("%s %q is not one of %s", key, s, strings.Join(names, ", "))
}
