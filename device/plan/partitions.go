// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// LayoutCordon says why the instances of a GPU take no new work while it waits
// for something before it is laid out again; empty when it does not.
func LayoutCordon(r config.Rule, g hardware.GPU, waitsFor string) string {
	wanted := slices.Sorted(slices.Values(r.Declared()))
	if len(wanted) == 0 || waitsFor == "" || LaidOut(g, wanted) {
		return ""
	}
	return fmt.Sprintf("waits for %s, to lay out %s", waitsFor, strings.Join(wanted, " "))
}

// LaidOut reports whether a GPU's partitions are those that are wanted: each profile
// as often, or of a GPU with one mode for all, that mode. Without partitions a GPU of
// AMD's is in mode SPX.
func LaidOut(g hardware.GPU, wanted []string) bool {
	have := profilesOf(g)
	if config.Vendors[g.Vendor].Mixed {
		return g.Partitioned && slices.Equal(wanted, have)
	}
	if !g.Partitioned {
		return strings.HasPrefix(wanted[0], "spx")
	}
	return !slices.ContainsFunc(have, func(profile string) bool { return profile != wanted[0] && !strings.HasPrefix(profile, wanted[0]+"-") })
}

// Unclear reports whether not all is known of a GPU's MIG instances now.
func Unclear(g hardware.GPU) bool {
	return g.PartitionProblem != nil || slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool { return len(i.Problems) > 0 })
}

func profilesOf(g hardware.GPU) []string {
	var all []string
	for _, i := range g.Partitions {
		all = append(all, i.Profile)
	}
	slices.Sort(all)
	return all
}
