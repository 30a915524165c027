// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// closeness finds which GPUs of a machine are near each other. Two that a link
// joins are a neighborhood of their own, as are all that lead to switches, and
// all of a NUMA node.
func closeness(gpus []hardware.GPU) gpu.Closeness {
	var found gpu.Closeness
	byPCI := map[string]string{}
	for _, g := range gpus {
		byPCI[g.PCIBusID] = g.UUID
	}
	numa, switched := map[int][]string{}, map[fabric]map[int][]string{}
	for _, g := range gpus {
		if g.NUMANode >= 0 {
			numa[g.NUMANode] = append(numa[g.NUMANode], g.UUID)
		}
		if n := g.Links.Switches; n > 0 {
			f := fabric{cmp.Or(g.Links.Kind, gpu.NearNVSwitch), g.Links.Fabric}
			if switched[f] == nil {
				switched[f] = map[int][]string{}
			}
			switched[f][n] = append(switched[f][n], g.UUID)
		}
		for pci, links := range g.Links.Peers {
			// Each end tells of the link; a peer that is no GPU of ours is none.
			if peer := byPCI[pci]; peer != "" && (g.UUID < peer || linksTo(gpus, peer, g.PCIBusID) == 0) {
				found = append(found, gpu.Neighborhood{By: cmp.Or(g.Links.Kind, gpu.NearNVLink), N: links, UUIDs: []string{g.UUID, peer}})
			}
		}
	}
	for node, uuids := range numa {
		found = append(found, gpu.Neighborhood{By: gpu.NearNUMA, N: node, UUIDs: uuids})
	}
	// GPUs with fewer links to the switches, some being down, are still joined to
	// the others: all of them are one neighborhood, with the least for its number.
	for f, members := range switched {
		least := slices.Min(slices.Collect(maps.Keys(members)))
		found = append(found, gpu.Neighborhood{By: f.by, N: least, UUIDs: slices.Concat(slices.Collect(maps.Values(members))...)})
	}
	return found
}

// fabric is what joins GPUs by switches, or as if by them.
type fabric struct{ by, name string }

func linksTo(gpus []hardware.GPU, uuid, pci string) int {
	at := slices.IndexFunc(gpus, func(g hardware.GPU) bool { return g.UUID == uuid })
	return gpus[at].Links.Peers[pci]
}
