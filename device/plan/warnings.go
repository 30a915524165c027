// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// alike joins warnings that differ by the device alone, in the order of the first.
type alike struct {
	texts []string
	names map[string][]string
}

func (a *alike) add(name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if a.names == nil {
		a.names = map[string][]string{}
	}
	if len(a.names[text]) == 0 {
		a.texts = append(a.texts, text)
	}
	a.names[text] = append(a.names[text], name)
}

func (a *alike) warnings() []string {
	const most = 3
	var list []string
	for _, text := range a.texts {
		names := a.names[text]
		subject := strings.Join(names[:min(most, len(names))], ", ")
		if more := len(names) - most; more > 0 {
			subject += fmt.Sprintf(" and %d more", more)
		}
		list = append(list, subject+": "+text)
	}
	return list
}

// Warnings are all of a configuration on a machine: each is worth reading, but not an error.
func Warnings(c *config.Config, units []*Unit, machine hardware.Machine, l *registry.Registry) []string {
	return slices.Concat(c.Idle, Unmatched(c, machine.GPUs, l), Empty(c, units), Crowded(c, units, machine))
}

// Empty warns of GPUs that offer nothing by the way they are configured.
func Empty(c *config.Config, units []*Unit) []string {
	var a alike
	for _, u := range units {
		switch o := u.Sharing; {
		case u.Unable() != "" || u.Gone:
		case o.Mode == gpu.ModeSlice && u.Slices == 0:
			a.add(u.Group.String(), "offered to nobody: slice_memory %s with headroom %s is more than its memory, %s",
				gpu.FormatMemory(o.SliceMiB), gpu.FormatMemory(o.HeadroomMiB), gpu.FormatMemory(u.MemoryMiB))
		case o.Mode.InParts() && u.Parent == "" && len(u.GPU.Partitions) == 0 && len(c.RuleFor(u.GPU, u.Index).Profiles) == 0:
			a.add(fmt.Sprintf("GPU %d (%s)", u.Index, u.GPU.Model), "offered to nobody: mode %q, and it has no instances; name them in profiles, or make them", o.Mode)
		}
	}
	return a.warnings()
}

// Crowded warns of devices with more instances than their MPS server takes clients, and of
// those whose server takes fewer than mps.max_clients.
func Crowded(c *config.Config, units []*Unit, machine hardware.Machine) []string {
	var few, small, crowded alike
	for _, u := range units {
		cuda := machine.Drivers[u.GPU.Vendor].Platform
		most := MaxClients(c, u, cuda)
		if can := maxClients(u.GPU.ComputeCapability, cuda); u.NeedsDaemon() && most > can {
			few.add(u.Group.String(), "mps.max_clients %d: the MPS server takes %d (compute capability %s, CUDA %s); programs beyond that get a CUDA error",
				most, can, cmp.Or(u.GPU.ComputeCapability, "unknown"), cmp.Or(cuda, "unknown"))
		}
		if text := gpu.TooSmallForMPS(u.GPU.Vendor, u.Sharing.Mechanism, u.Sharing.SliceMiB); text != "" && u.Sharing.Mode == gpu.ModeSlice && u.Offered() {
			small.add(u.Group.String(), "slice_memory: %s; tasks need several slices", text)
		}
		if count := len(u.IDs()); u.Sharing.Mechanism == gpu.SharingMPS && u.Offered() && count > most {
			crowded.add(u.Group.String(), "%d instances, and an MPS server takes %d CUDA contexts: when they are used up, the instances that are left take no work; make slices larger (slice_memory) unless tasks hold several",
				count, most)
		}
	}
	return slices.Concat(few.warnings(), small.warnings(), crowded.warnings())
}

// Unmatched warns of what in a configuration concerns no GPU of the machine.
// There is nothing to say before every GPU is in the registry: until then it is not
// known which rule is for it.
func Unmatched(c *config.Config, gpus []hardware.GPU, l *registry.Registry) []string {
	if !l.Knows(gpus) {
		return nil
	}
	var warnings []string
	first := map[int]bool{}
	ids := map[string]bool{}
	for _, g := range gpus {
		ids[g.UUID] = true
		for _, i := range g.Partitions {
			ids[i.UUID] = true
		}
		at := slices.IndexFunc(c.Rules, func(r config.Rule) bool { return r.Selects(g, l.Records[g.UUID].Index) })
		first[at] = true
	}
	for i := range c.Rules {
		if !first[i] {
			warnings = append(warnings, unmatched(c.Rules, i, gpus, l))
		}
	}
	for id := range c.Ignored {
		if !ids[id] {
			warnings = append(warnings, fmt.Sprintf("ignored_gpu_ids: %q is not a device of this machine", id))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// unmatched says why a rule selects nothing: earlier rules have it all, or the machine has
// no such GPU.
func unmatched(rules []config.Rule, at int, gpus []hardware.GPU, l *registry.Registry) string {
	var have []string
	for _, g := range gpus {
		if rules[at].Selects(g, l.Records[g.UUID].Index) {
			return fmt.Sprintf("gpu[%d] selects no GPU that an earlier rule does not select", at)
		}
		if !slices.Contains(have, g.Model) {
			have = append(have, g.Model)
		}
	}
	return fmt.Sprintf("gpu[%d] selects no GPU: none of this machine has %s; there are %s", at, rules[at].Says(), strings.Join(have, ", "))
}
