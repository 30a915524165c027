// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Holder is what tasks hold of one device.
type Holder struct {
	Slices map[int]bool
	All    bool
}

// Any reports whether anything is held.
func (h Holder) Any() bool { return h.All || len(h.Slices) > 0 }

// Holders sums up what leases hold.
func Holders(leases []gpu.Lease) map[string]Holder {
	all := map[string]Holder{}
	for _, l := range leases {
		for _, h := range l.Holdings {
			hold(all, h.UUID, h.Slices)
		}
	}
	return all
}

// hold enters a share of a device; no slices mean all of it.
func hold(all map[string]Holder, uuid string, numbers []int) {
	have := all[uuid]
	if have.Slices == nil {
		have.Slices = map[int]bool{}
	}
	have.All = have.All || len(numbers) == 0
	for _, n := range numbers {
		have.Slices[n] = true
	}
	all[uuid] = have
}

// Merge adds what others hold.
func Merge(all, others map[string]Holder) map[string]Holder {
	for uuid, h := range others {
		if h.All {
			hold(all, uuid, nil)
		}
		if len(h.Slices) > 0 {
			hold(all, uuid, slices.Collect(maps.Keys(h.Slices)))
		}
	}
	return all
}

// LiveAfter leaves the leases that are live, or ended only after the given
// moment. With the present for the moment, those are the live ones.
func LiveAfter(leases []gpu.Lease, moment time.Time) []gpu.Lease {
	return slices.DeleteFunc(slices.Clone(leases), func(l gpu.Lease) bool { return !l.Live() && !l.EndedAt.After(moment) })
}

// TasksOn counts the tasks that share each device.
func TasksOn(leases []gpu.Lease) map[string]int {
	all := map[string]int{}
	for _, l := range leases {
		for _, h := range l.Holdings {
			all[h.UUID]++
		}
	}
	return all
}

// Tenant is a live lease and its share of the device in question.
type Tenant struct {
	Lease   gpu.Lease
	Holding gpu.Holding
}

// On are those who hold a device.
func On(leases []gpu.Lease, uuid string) []Tenant {
	var on []Tenant
	for _, l := range leases {
		for _, h := range l.Holdings {
			if h.UUID == uuid {
				on = append(on, Tenant{l, h})
			}
		}
	}
	return on
}
