package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Crowded warns of devices with more instances than their MPS server takes clients, and of
// those whose server takes fewer than mps.max_clients.
func Crowded(c *config.Config, units []*Unit, machine hardware.Machine) []string {
	var warnings []string
	for _, u := range units {
		cuda := machine.Drivers[u.GPU.Vendor].Platform
		most := MaxClients(c, u, cuda)
		if can := maxClients(u.GPU.ComputeCapability, cuda); u.NeedsDaemon() && most > can {
			warnings = append(warnings, fmt.Sprintf("mps.max_clients %d: the MPS server of %s takes %d (compute capability %s, CUDA %s); programs beyond that get a CUDA error",
				most, u.Group, can, cmp.Or(u.GPU.ComputeCapability, "unknown"), cmp.Or(cuda, "unknown")))
		}
		if count := len(u.IDs()); u.Sharing.Mechanism == gpu.SharingMPS && u.Offered() && count > most {
			warnings = append(warnings, fmt.Sprintf(
				"%s: %d instances, and its MPS server has %d clients at most, which are counted by CUDA contexts: when they are used up, the instances that are left take no work; make slices larger (slice_memory) unless tasks hold several",
				u.Group, count, most))
		}
	}
	return warnings
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
			warnings = append(warnings, fmt.Sprintf("gpu[%d] selects no GPU of this machine that an earlier rule does not select", i))
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
