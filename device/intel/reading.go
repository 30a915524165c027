// SPDX-License-Identifier: MPL-2.0

package intel

import (
	"fmt"
	"sync"
	"time"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// rates turn counters into how fast they grow.
type rates struct {
	mu   sync.Mutex
	last map[string]sample
}

// sample is a counter at a moment, and the rate that it had then; -1 is absent.
type sample struct {
	at            time.Time
	count, perSec int64
}

// oldest is the time after which a counter that was not read starts over.
const oldest = time.Minute

// of is how much a counter grows in a second, absent with the first reading. A reading
// right after another gives what that gave.
func (r *rates) of(key string, count int64, now time.Time) int64 {
	if count < 0 {
		return hardware.Absent
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.last[key]
	passed := now.Sub(before.at)
	if known && passed < 100*time.Millisecond {
		return before.perSec
	}
	next := sample{at: now, count: count, perSec: hardware.Absent}
	if known && passed < oldest && count >= before.count {
		next.perSec = int64(float64(count-before.count) / passed.Seconds())
	}
	for old, s := range r.last {
		if now.Sub(s.at) > oldest {
			delete(r.last, old)
		}
	}
	r.last[key] = next
	return next.perSec
}

// Reading measures a GPU; of a virtual function nothing is told.
func (b *Backend) Reading(_, uuid string) (hardware.Reading, error) {
	return on(b, uuid, func(s seen) hardware.Reading {
		r := hardware.NoReading()
		if s.function {
			return r
		}
		sensors := b.tree.Sensors(dir(s.pci))
		r.TemperatureC, r.MemoryTemperatureC = sensors.TemperatureC, sensors.MemoryTemperatureC
		r.PowerLimitWatts = sysfs.Per(sensors.PowerCap, 1e6)
		r.EnergyMilliJoules = sysfs.Per(sensors.EnergyMicrojoules, 1000)
		r.PowerWatts = sysfs.Per(sensors.PowerMicrowatts, 1e6)
		if r.PowerWatts < 0 {
			r.PowerWatts = sysfs.Per(b.rates.of("energy "+uuid, sensors.EnergyMicrojoules, b.now()), 1e6)
		}
		r.SMClockMHz = b.frequency(s.pci, "act_freq", "rps_act_freq_mhz")
		if total := b.memory(s.pci, b.tiles(s.pci)); total > 0 {
			r.MemoryTotalMiB = total >> 20
			r.MemoryUsedMiB = b.used(s.pci)
		}
		return r
	})
}

// used is what all programs hold: no driver tells it for the card. Absent where one of
// them does not tell.
func (b *Backend) used(pci string) int64 {
	sum := int64(0)
	for _, c := range b.clients.Of(pci) {
		if c.MemoryBytes < 0 {
			return hardware.Absent
		}
		sum += c.MemoryBytes
	}
	return sum >> 20
}

// Processes lists the programs on a GPU or a virtual function, by their handles.
func (b *Backend) Processes(_, uuid string) ([]hardware.Process, error) {
	return on(b, uuid, func(s seen) []hardware.Process {
		var found []hardware.Process
		for _, c := range b.clients.Of(s.pci) {
			p := hardware.Process{PID: c.PID, MemoryMiB: sysfs.Per(c.MemoryBytes, 1<<20), Milli: hardware.Absent}
			p.Milli = b.busy(fmt.Sprintf("%s %d", s.pci, c.PID), c)
			found = append(found, p)
		}
		return found
	})
}

// busy is how much of the engines a program has used since it was looked at before, in
// thousandths: i915 counts time, xe cycles.
func (b *Backend) busy(key string, c sysfs.Client) int64 {
	now := b.now()
	if time := b.rates.of("busy "+key, int64(c.Busy), now); time >= 0 {
		return min(1000, time/1e6)
	}
	used, total := b.rates.of("cycles "+key, c.Cycles, now), b.rates.of("clock "+key, c.TotalCycles, now)
	if used < 0 || total <= 0 {
		return hardware.Absent
	}
	return min(1000, used*1000/total)
}

// CDISpec describes GPUs and virtual functions, named by UUID: the card and render
// nodes of that device only.
func (b *Backend) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	b.refresh()
	return sysfs.Spec(kind, specs.ContainerEdits{}, uuids, b.edits)
}

// edits are the nodes of one GPU or virtual function.
func (b *Backend) edits(uuid string) (specs.ContainerEdits, error) {
	s, found := b.found.Lookup(uuid)
	if !found || s.nodes.Render == "" {
		return specs.ContainerEdits{}, sysfs.ErrNotThere
	}
	names := []string{"dri/" + s.nodes.Render}
	if s.nodes.Card != "" && b.tree.Has("dev/dri", s.nodes.Card) {
		names = append(names, "dri/"+s.nodes.Card)
	}
	return b.tree.Edits(names...)
}

// CheckCDI reports faults of a spec on this machine.
func (b *Backend) CheckCDI(s *specs.Spec, names []string) error {
	return sysfs.CheckCDI(s, names, "/dev/dri/renderD*")
}

// Stands finds the device of an operator's CDI device by its render node: Intel's tools
// name them by position or by PCI address.
func (b *Backend) Stands(d specs.Device) string {
	render := sysfs.RenderNode(d)
	return b.found.First(func(s seen) bool { return render != "" && render == s.nodes.Render })
}
