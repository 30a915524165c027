package device

import (
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// stats measures every offered device. A device that does not answer is left
// out of this round.
func (e *engine) stats() []*device.DeviceGroupStats {
	latest := e.latest.Load()
	if latest == nil {
		return nil
	}
	var groups []*device.DeviceGroupStats
	byName := map[groupName]*device.DeviceGroupStats{}
	for _, u := range latest.units {
		if !u.offered() {
			continue
		}
		r, err := e.platform.observer.Reading(u.owner(), u.uuid)
		if err != nil {
			continue
		}
		g := byName[u.group]
		if g == nil {
			g = &device.DeviceGroupStats{Vendor: u.group.vendor, Type: u.group.kind, Name: u.group.name, InstanceStats: map[string]*device.DeviceStats{}}
			byName[u.group] = g
			groups = append(groups, g)
		}
		for _, id := range u.ids() {
			g.InstanceStats[id] = deviceStats(r, e.now())
		}
	}
	return groups
}

func deviceStats(r hardware.Reading, now time.Time) *device.DeviceStats {
	s := statSet{}
	s.add("Memory state", r.MemoryUsedMiB, r.MemoryTotalMiB, structs.UnitMiB, "UsedMemory / TotalMemory")
	s.add("Power usage", r.PowerWatts, r.PowerLimitWatts, structs.UnitW, "Power usage / power limit")
	s.add("GPU utilization", r.GPUPercent, hardware.Absent, "%", "Share of time in which a kernel ran")
	s.add("Temperature", r.TemperatureC, hardware.Absent, "C", "Temperature of the GPU")
	return &device.DeviceStats{Summary: s["Memory state"], Stats: &structs.StatObject{Attributes: s}, Timestamp: now}
}

// statSet leaves out what the device does not give.
type statSet map[string]*structs.StatValue

func (s statSet) add(name string, value, limit int64, unit, description string) {
	if value == hardware.Absent {
		return
	}
	v := &structs.StatValue{IntNumeratorVal: &value, Unit: unit, Desc: description}
	if limit != hardware.Absent {
		v.IntDenominatorVal = &limit
	}
	s[name] = v
}
