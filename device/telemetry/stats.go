// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// The names of the statistics are those of HashiCorp's plugin, as far as it has
// them.
const (
	statMemory      = "Memory state"
	statPower       = "Power usage"
	statSlice       = "Slice memory state"
	statGPU         = "GPU utilization"
	statSM          = "SM utilization"
	statTensor      = "Tensor core utilization"
	statDRAM        = "Memory bandwidth utilization"
	statMemoryUse   = "Memory utilization"
	statEncoder     = "Encoder utilization"
	statDecoder     = "Decoder utilization"
	statTemperature = "Temperature"
	statBAR1        = "BAR1 buffer state"
	statECCL1       = "ECC L1 errors"
	statECCL2       = "ECC L2 errors"
	statECCMemory   = "ECC memory errors"
	statSMClock     = "SM clock"
	statMemoryClock = "Memory clock"
	statTask        = "Task"
	statTaskMemory  = gpu.StatTaskMemory
	statTaskCompute = gpu.StatTaskCompute
	statTaskSeat    = gpu.StatTaskSeat
)

// measured is a unit with its reading.
type measured struct {
	*plan.Unit
	hardware.Reading
}

// Monitor answers for statistics and metrics, from the last publication and
// measurement and from the devices' present readings.
type Monitor struct {
	Observer  Reader
	Published Published
	Meter     *Meter
	Health    *health.Tracker
	Now       func() time.Time
	// Server tells the processes of MPS daemons, Environ with what environment a
	// process began.
	Server  func(pid int) bool
	Environ func(pid int) []byte
	// DriverCounts is what the task driver of the node did.
	DriverCounts func() (gpu.DriverCounts, error)
}

// read measures every device. One that does not answer is left out.
func (m *Monitor) read() []measured {
	var all []measured
	for _, u := range m.Published.Units() {
		if r, err := m.Observer.Reading(u.Owner(), u.UUID); err == nil {
			all = append(all, measured{u, r})
		}
	}
	return all
}

// Stats is what Nomad shows with node and alloc status -stats: a line per reading and
// instance. The readings of a shared device therefore stand with its first instance, and once
// for each task; a free instance has none. Nomad warns of an instance in use without statistics.
func (m *Monitor) Stats() []*device.DeviceGroupStats {
	tasks, now := m.tenants(), m.Now()
	var groups []*device.DeviceGroupStats
	byName := map[plan.GroupName]*device.DeviceGroupStats{}
	for _, u := range m.read() {
		if !u.Offered() {
			continue
		}
		g := byName[u.Group]
		if g == nil {
			g = &device.DeviceGroupStats{Vendor: u.Group.Vendor, Type: u.Group.Kind, Name: u.Group.Name, InstanceStats: map[string]*device.DeviceStats{}}
			byName[u.Group] = g
			groups = append(groups, g)
		}
		for n, id := range u.IDs() {
			if o := tasks[instanceKey{u.UUID, n}]; n == 0 || o.begins(n) {
				g.InstanceStats[id] = u.instanceStats(o, n, now)
			} else if o != nil {
				g.InstanceStats[id] = u.furtherStats(o, n, now)
			}
		}
	}
	slices.SortFunc(groups, func(a, b *device.DeviceGroupStats) int {
		return strings.Compare(a.Type+"/"+a.Name, b.Type+"/"+b.Name)
	})
	return groups
}

// instanceKey names one instance of a device.
type instanceKey struct {
	uuid string
	n    int
}

// occupant is a task on a device, with its measured use.
type occupant struct {
	lease   gpu.Lease
	holding gpu.Holding
	usage   *gpu.TaskUsage
	seat    *gpu.Seat // nil if no seat of it is known
}

// tenants finds the live task of each instance. Tasks with a lease come last, and so
// replace the claims of programs' environments.
func (m *Monitor) tenants() map[instanceKey]*occupant {
	all, leases := map[instanceKey]*occupant{}, m.Meter.known()
	for _, o := range append(m.look(leases).others, m.occupants(leases)...) {
		numbers := o.holding.Slices
		if len(numbers) == 0 {
			numbers = []int{0}
		}
		for _, n := range numbers {
			all[instanceKey{o.holding.UUID, n}] = &o
		}
	}
	return all
}

// occupants are the tasks of live leases, with their measured use.
func (m *Monitor) occupants(leases []gpu.Lease) []occupant {
	usage := map[string]*gpu.TaskUsage{}
	if u := m.Meter.latest.Load(); u != nil {
		for i := range u.Tasks {
			usage[u.Tasks[i].LeaseID+u.Tasks[i].UUID] = &u.Tasks[i]
		}
	}
	var all []occupant
	seats := map[string][]gpu.Seat{}
	for _, l := range leases {
		for _, h := range l.Holdings {
			all = append(all, occupant{l, h, usage[l.ID+h.UUID], m.Meter.seatOf(l, h, seats)})
		}
	}
	return all
}

// seatOf is the seat of a task as the task driver keeps it; nil where there is none.
// Seats that were read are kept in the map, by device.
func (m *Meter) seatOf(l gpu.Lease, h gpu.Holding, read map[string][]gpu.Seat) *gpu.Seat {
	if h.SeatMiB == 0 {
		return nil
	}
	list, known := read[h.UUID]
	if !known {
		if all, err := m.State.Seats(h.UUID); err == nil {
			list = all.Seats
		}
		read[h.UUID] = list
	}
	at := slices.IndexFunc(list, func(s gpu.Seat) bool { return s.LeaseID == l.ID })
	if at < 0 {
		return nil
	}
	return &list[at]
}

// instanceStats are the readings of the device, and for a slice what its task
// has of it. The summary is the memory of the instance: used and total.
func (m measured) instanceStats(o *occupant, n int, now time.Time) *device.DeviceStats {
	s := deviceStats(m.Reading)
	summary := s[statMemory]
	if o != nil {
		o.describe(s, m.Seats)
	}
	switch memory, ok := s[statTaskMemory]; {
	case m.Sharing.Mode == gpu.ModeSlice:
		s.add(statSlice, o.sliceMiB(n), m.Sharing.SliceMiB, structs.UnitMiB, "Memory that the task uses of the slice / the slice")
		summary = s[statSlice]
	case m.Sharing.Mode == gpu.ModeShared && ok:
		summary = memory
	}
	return &device.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: s}, Timestamp: now}
}

// furtherStats are those of an instance whose task has the device's readings at another.
func (m measured) furtherStats(o *occupant, n int, now time.Time) *device.DeviceStats {
	s := statSet{}
	o.describe(s, m.Seats)
	return &device.DeviceStats{Summary: m.instanceStats(o, n, now).Summary, Stats: &structs.StatObject{Attributes: s}, Timestamp: now}
}

// begins reports whether an instance is the first that a task holds of its device.
func (o *occupant) begins(n int) bool {
	return o != nil && (len(o.holding.Slices) == 0 || slices.Min(o.holding.Slices) == n)
}

// describe adds whose the instance is and what that task uses in all.
func (o *occupant) describe(s statSet, rules *gpu.SeatRules) {
	text := fmt.Sprintf("%s/%s (alloc %.8s)", o.lease.Job, o.lease.Task, o.lease.AllocID)
	s[statTask] = &structs.StatValue{StringVal: &text, Desc: "Job and task that hold the instance"}
	o.describeSeat(s, rules)
	if o.usage == nil {
		return
	}
	limit := int64(hardware.Absent)
	if o.holding.MostMiB() > 0 {
		limit = o.holding.MostMiB()
	}
	s.add(statTaskMemory, o.usage.MemoryMiB, limit, structs.UnitMiB, "GPU memory of all processes of the task / its limit")
	s.add(statTaskCompute, o.usage.Milli, hardware.Absent, "milli", "Use of the GPU's multiprocessors by the task, 1000 is all")
}

// describeSeat adds where a task with a seat is, since when and why, and when its turn is
// at the latest.
func (o *occupant) describeSeat(s statSet, rules *gpu.SeatRules) {
	if o.seat == nil {
		return
	}
	add := func(name, text, description string) {
		if text != "" {
			s[name] = &structs.StatValue{StringVal: &text, Desc: description}
		}
	}
	add(statTaskSeat, string(o.seat.Where()), "Where a task with a seat is: waiting, resident, suspending, suspended, idle (suspended since it did not use the GPU), resuming or lost")
	add(gpu.StatTaskSeatWhy, o.seat.Reason, "Why the task is there, or what hinders it")
	if o.seat.Since.IsZero() {
		return
	}
	add(gpu.StatTaskSeatSince, o.seat.Since.UTC().Format(time.RFC3339), "Since when the task is there")
	if rules != nil && o.seat.Away() {
		add(gpu.StatTaskSeatFirst, o.seat.Since.Add(time.Duration(rules.MaxWaitMS)*time.Millisecond).UTC().Format(time.RFC3339), "From when on the task comes before all others")
	}
}

// sliceMiB is what the task of a slice uses of it. Memory belongs to no slice:
// what the task uses is spread over all of its own, so that they add up to it.
// Nothing of a free slice is used; what a task uses that was not measured is absent.
func (o *occupant) sliceMiB(n int) int64 {
	if o == nil {
		return 0
	}
	at, count := slices.Index(o.holding.Slices, n), len(o.holding.Slices)
	if o.usage == nil || at < 0 {
		return hardware.Absent
	}
	return o.usage.MemoryMiB*int64(at+1)/int64(count) - o.usage.MemoryMiB*int64(at)/int64(count)
}

func deviceStats(r hardware.Reading) statSet {
	const none = hardware.Absent
	s := statSet{}
	s.add(statMemory, r.MemoryUsedMiB, r.MemoryTotalMiB, structs.UnitMiB, "UsedMemory / TotalMemory")
	s.add(statPower, r.PowerWatts, r.PowerLimitWatts, structs.UnitW, "Power usage for this GPU in watts / its power limit")
	busy := r.GPUPercent
	if busy == none {
		busy = percentOf(r.GraphicsMilli) // all that is known of a MIG instance
	}
	s.add(statGPU, busy, 100, "%", "Percent of time during which one or more kernels ran")
	s.add(statSM, percentOf(r.SMMilli), 100, "%", "Mean use of the multiprocessors")
	s.add(statTensor, percentOf(r.TensorMilli), 100, "%", "Mean use of the tensor cores")
	s.add(statDRAM, percentOf(r.DRAMMilli), 100, "%", "Use of the memory's bandwidth")
	s.add(statMemoryUse, r.MemoryPercent, 100, "%", "Percent of time during which the memory was read or written")
	s.add(statEncoder, r.EncoderPercent, 100, "%", "Percent of time during which the encoder was used")
	s.add(statDecoder, r.DecoderPercent, 100, "%", "Percent of time during which the decoder was used")
	s.add(statTemperature, r.TemperatureC, none, "C", "Temperature of the GPU")
	s.add(statBAR1, r.BAR1UsedMiB, r.BAR1TotalMiB, structs.UnitMiB, "UsedBAR1 / TotalBAR1")
	s.add(statSMClock, r.SMClockMHz, none, structs.UnitMHz, "Clock of the multiprocessors now")
	s.add(statMemoryClock, r.MemoryClockMHz, none, structs.UnitMHz, "Clock of the memory now")
	s.add(statECCL1, r.ECCL1, none, "#", "Uncorrected L1 errors since the driver was loaded")
	s.add(statECCL2, r.ECCL2, none, "#", "Uncorrected L2 errors since the driver was loaded")
	s.add(statECCMemory, r.ECCMemory, none, "#", "Uncorrected memory errors since the driver was loaded")
	return s
}

func percentOf(milli int64) int64 {
	if milli == hardware.Absent {
		return hardware.Absent
	}
	return milli / 10
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
