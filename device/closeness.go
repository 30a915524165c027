package device

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// closeness finds which GPUs of a machine are near each other. Two that NVLink
// joins are a neighborhood of their own, as are all that lead to switches, and
// all of a NUMA node.
func closeness(gpus []hardware.GPU) gpu.Closeness {
	var found gpu.Closeness
	byPCI := map[string]string{}
	for _, g := range gpus {
		byPCI[g.PCIBusID] = g.UUID
	}
	numa, switched := map[int][]string{}, map[int][]string{}
	for _, g := range gpus {
		if g.NUMANode >= 0 {
			numa[g.NUMANode] = append(numa[g.NUMANode], g.UUID)
		}
		if n := g.NVLinks.Switches; n > 0 {
			switched[n] = append(switched[n], g.UUID)
		}
		for pci, links := range g.NVLinks.Peers {
			// Each end tells of the link; a peer that is no GPU of ours is none.
			if peer := byPCI[pci]; peer != "" && (g.UUID < peer || linksTo(gpus, peer, g.PCIBusID) == 0) {
				found = append(found, gpu.Neighborhood{By: gpu.NearNVLink, N: links, UUIDs: []string{g.UUID, peer}})
			}
		}
	}
	for node, uuids := range numa {
		found = append(found, gpu.Neighborhood{By: gpu.NearNUMA, N: node, UUIDs: uuids})
	}
	// GPUs with fewer links to the switches, some being down, are still joined to
	// the others: all of them are one neighborhood, with the least for its number.
	if len(switched) > 0 {
		least := slices.Min(slices.Collect(maps.Keys(switched)))
		found = append(found, gpu.Neighborhood{By: gpu.NearNVSwitch, N: least, UUIDs: slices.Concat(slices.Collect(maps.Values(switched))...)})
	}
	return found
}

func linksTo(gpus []hardware.GPU, uuid, pci string) int {
	at := slices.IndexFunc(gpus, func(g hardware.GPU) bool { return g.UUID == uuid })
	return gpus[at].NVLinks.Peers[pci]
}
