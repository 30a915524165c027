// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Sharing is how a device is given to Nomad. It is what the registry remembers of a
// device, so that a change is noticed.
type Sharing struct {
	Mode gpu.Mode `json:"mode"`
	// Mechanism is what keeps the tasks on the device apart.
	Mechanism   gpu.Sharing `json:"sharing"`
	SliceMiB    int64       `json:"slice_mib,omitempty"`
	HeadroomMiB int64       `json:"headroom_mib,omitempty"`
	Replicas    int64       `json:"replicas,omitempty"`
	Timeslice   string      `json:"timeslice,omitempty"`
	BurstMilli  int64       `json:"burst_milli,omitempty"`
	// chosen says that the operator named the mechanism.
	chosen bool
}

// timeslices are the lengths that nvidia-smi knows, in order of its numbers.
var timeslices = []string{"default", "short", "medium", "long"}

const (
	maxReplicas = 1000
	maxSliceMiB = 1 << 20
)

// sharing fills in what a block leaves out from the block around it and checks
// the whole.
func (p *parser) sharing(key string, raw rawSharing, around Sharing) Sharing {
	o := around
	if raw.Mode != nil {
		mode, err := gpu.ParseMode(*raw.Mode)
		if err != nil {
			p.fail("%s%w", key, err)
		}
		if mode != o.Mode {
			o.Mode, o.Mechanism, o.chosen = mode, defaultSharing(mode), false
		}
	}
	if raw.Sharing != nil {
		sharing, err := gpu.ParseSharing(*raw.Sharing)
		if err != nil {
			p.fail("%s%w", key, err)
		}
		o.Mechanism, o.chosen = sharing, true
	}
	p.amount(key+"slice_memory", raw.SliceMemory, &o.SliceMiB)
	p.amount(key+"headroom", raw.Headroom, &o.HeadroomMiB)
	p.number(key+"replicas", raw.Replicas, &o.Replicas, 1, maxReplicas)
	p.number(key+"compute_burst", raw.ComputeBurst, &o.BurstMilli, 1, gpu.MilliPerGPU)
	if raw.Timeslice != nil {
		o.Timeslice = p.oneOf(key+"timeslice", *raw.Timeslice, timeslices...)
	}
	if (o.Mode == gpu.ModeWhole || o.Mode.InParts()) && raw.Sharing != nil && o.Mechanism != gpu.SharingNone {
		p.fail("%ssharing %q does not go with mode %q: nothing is shared there; leave it out", key, o.Mechanism, o.Mode)
	}
	return o
}

// defaultSharing is what keeps tasks apart unless the operator says otherwise.
func defaultSharing(mode gpu.Mode) gpu.Sharing {
	switch mode {
	case gpu.ModeSlice:
		return gpu.SharingMPS
	case gpu.ModeShared:
		return gpu.SharingTimeslice
	default:
		return gpu.SharingNone
	}
}

// Slices is how many slices, or replicas, an amount of memory gives. What the
// driver keeps for itself is part of the headroom, which grows where it is not
// enough.
func (o Sharing) Slices(memoryMiB, reservedMiB int64) int {
	switch o.Mode {
	case gpu.ModeSlice:
		return int(max(0, (memoryMiB-max(o.HeadroomMiB, reservedMiB))/o.SliceMiB))
	case gpu.ModeShared:
		return int(o.Replicas)
	default:
		return 0
	}
}

// Same reports whether a device that is offered in one way already is offered
// in the other: nothing that a running task relies on differs.
func (o Sharing) Same(other Sharing) bool { return o.identity() == other.identity() }

// identity leaves out fields that may change under running tasks, and fields that the mode
// does not use.
func (o Sharing) identity() Sharing {
	kept := Sharing{Mode: o.Mode, Mechanism: o.Mechanism}
	switch o.Mode {
	case gpu.ModeSlice:
		kept.SliceMiB, kept.HeadroomMiB = o.SliceMiB, o.HeadroomMiB
	case gpu.ModeShared:
		kept.Replicas = o.Replicas
	}
	return kept
}

// String is the configuration in a few words, for messages.
func (o Sharing) String() string {
	switch o.Mode {
	case gpu.ModeSlice:
		return fmt.Sprintf("slices of %s with %s", gpu.FormatMemory(o.SliceMiB), o.Mechanism)
	case gpu.ModeShared:
		return fmt.Sprintf("%d replicas with %s", o.Replicas, o.Mechanism)
	default:
		return string(o.Mode)
	}
}

// Rule says how the GPUs that it selects are offered.
type Rule struct {
	vendor string // of the GPU that it was found for
	selector
	Sharing   Sharing
	Profiles  []string
	Demand    *Demand // nil: the layout is the operator's
	instances []migRule
}

// Demand bounds a MIG layout that follows demand: Rule.Profiles are then those that may be
// made, without any all whose names have no suffix.
type Demand struct {
	// Rule is the position of the rule: Least and AtOnce are for all of its GPUs together.
	Rule int
	// Least are instances that must remain.
	Least  []string
	AtOnce int
	PerDay int
}

// Declared are the profiles of a layout that the operator declares.
func (r Rule) Declared() []string {
	if r.Demand != nil {
		return nil
	}
	return r.Profiles
}

// Allows reports whether a rule lets a profile be made by demand.
func (r Rule) Allows(profile string) bool {
	if len(r.Profiles) > 0 {
		return slices.Contains(r.Profiles, profile)
	}
	return !strings.ContainsAny(profile, "+-")
}

// migRule says how the MIG instances of some profiles are offered.
type migRule struct {
	profile string
	sharing Sharing
}

// selector picks GPUs; everything that is set must fit.
type selector struct {
	uuid, pci, model, vendor string
	index                    *int
}

// Selects reports whether a GPU, with its index, is one of those that are picked.
func (s selector) Selects(g hardware.GPU, index int) bool {
	return (s.uuid == "" || s.uuid == g.UUID) &&
		(s.vendor == "" || s.vendor == g.Vendor) &&
		(s.pci == "" || s.pci == g.PCIBusID) &&
		(s.index == nil || *s.index == index) &&
		(s.model == "" || globModel(s.model, g.Model) || globModel(s.model, gpu.ShortModel(g.Model)))
}

func glob(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// globModel takes "h100" for "H100": no two models differ by case alone.
func globModel(pattern, name string) bool {
	return glob(strings.ToLower(pattern), strings.ToLower(name))
}

// Says names what a rule selects by, for messages: model "h100", index 3.
func (s selector) Says() string {
	var parts []string
	for _, by := range []struct{ key, value string }{{"uuid", s.uuid}, {"vendor", s.vendor}, {"pci", s.pci}, {"model", s.model}} {
		if by.value != "" {
			parts = append(parts, fmt.Sprintf("%s %q", by.key, by.value))
		}
	}
	if s.index != nil {
		parts = append(parts, fmt.Sprintf("index %d", *s.index))
	}
	return strings.Join(parts, ", ")
}

// SharingOfInstance is how a rule offers a MIG instance: whole unless it says
// otherwise.
func (r Rule) SharingOfInstance(profile string) Sharing {
	for _, m := range r.instances {
		if glob(m.profile, profile) {
			return m.sharing.fit(r.vendor)
		}
	}
	return Sharing{Mode: gpu.ModeWhole, Mechanism: gpu.SharingNone}
}

// fit makes a configuration one of the vendor's: what the operator left open is what
// the vendor has.
func (o Sharing) fit(vendor string) Sharing {
	t, known := Vendors[vendor]
	switch {
	case !known:
	case o.Mode.InParts():
		o.Mode = t.Parts
	case o.chosen:
	case o.Mode == gpu.ModeSlice:
		o.Mechanism = t.slice
	case o.Mode == gpu.ModeShared:
		o.Mechanism = t.shared
	}
	return o
}
