// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"golang.org/x/sync/errgroup"
)

// Measurements are the readings of a node.
type Measurements struct {
	GPUs  map[string]view.Measured // by UUID
	Tasks map[string]TaskUse       // by device instance that the task holds
}

// TaskUse is what all processes of a task use of a GPU; view.Unmeasured where it is not
// known.
type TaskUse struct {
	At               time.Time
	Milli, MemoryMiB int64
	// Seat is where a task with a seat is, since when and why, and from when on it comes
	// before all others; empty for one that has none.
	Seat                 gpu.SeatState
	SeatSince, SeatFirst time.Time
	SeatWhy              string
}

// Measure reads the device statistics of a node from its Nomad client.
func (c *Client) Measure(ctx context.Context, nodeID string) (Measurements, error) {
	stats, err := c.api.Nodes().Stats(nodeID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return Measurements{}, fmt.Errorf("measure node %q: %w", nodeID, err)
	}
	found := NewMeasurements()
	for _, group := range stats.DeviceStats {
		for id, s := range group.InstanceStats {
			if slice, _, err := gpu.ParseSliceID(id); err == nil && s != nil {
				found.add(slice.UUID, s)
				found.addTask(id, s)
			}
		}
	}
	return found, nil
}

// NewMeasurements are none.
func NewMeasurements() Measurements {
	return Measurements{map[string]view.Measured{}, map[string]TaskUse{}}
}

// addTask takes what the task of an instance uses, where it is told.
func (m Measurements) addTask(id string, s *api.DeviceStats) {
	if s.Stats == nil {
		return
	}
	use := TaskUse{At: s.Timestamp, Milli: view.Unmeasured, MemoryMiB: view.Unmeasured}
	use.Seat, use.SeatWhy = gpu.SeatState(text(s, gpu.StatTaskSeat)), text(s, gpu.StatTaskSeatWhy)
	use.SeatSince, use.SeatFirst = moment(s, gpu.StatTaskSeatSince), moment(s, gpu.StatTaskSeatFirst)
	memory, compute := s.Stats.Attributes[gpu.StatTaskMemory], s.Stats.Attributes[gpu.StatTaskCompute]
	if memory != nil {
		use.MemoryMiB = numerator(memory)
	}
	if compute != nil {
		use.Milli = numerator(compute)
	}
	if memory != nil || compute != nil || use.Seat != "" {
		m.Tasks[id] = use
	}
}

func text(s *api.DeviceStats, name string) string {
	if value := s.Stats.Attributes[name]; value != nil && value.StringVal != nil {
		return *value.StringVal
	}
	return ""
}

// moment is a time that a device plugin told; zero where it told none.
func moment(s *api.DeviceStats, name string) time.Time {
	at, _ := time.Parse(time.RFC3339, text(s, name))
	return at
}

// MeasureAll reads several nodes, a few at a time, and hands each result over.
// A node that does not answer is left out: its last measurement ages.
func (c *Client) MeasureAll(ctx context.Context, nodeIDs []string, each func(nodeID string, m Measurements)) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, id := range nodeIDs {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			if m, err := c.Measure(ctx, id); err == nil {
				each(id, m)
			}
			return nil
		})
	}
	_ = group.Wait() // no task fails
}

// add takes the statistics of one instance. Some slices of a GPU report the
// GPU's; the newest count.
func (m Measurements) add(uuid string, s *api.DeviceStats) {
	have, ok := m.GPUs[uuid]
	if ok && !s.Timestamp.After(have.At) {
		return
	}
	told := false
	v := view.Measured{At: s.Timestamp, Milli: view.Unmeasured, MemoryMiB: view.Unmeasured, TemperatureC: view.Unmeasured, PowerW: view.Unmeasured}
	if s.Stats != nil {
		for name, value := range s.Stats.Attributes {
			if take := statistics[name]; take != nil && value != nil {
				take(&v, value)
				told = true
			}
		}
	}
	if told {
		m.GPUs[uuid] = v
	}
}

// statistics says where a device statistic goes; the names are those of
// nomad-device-nvidia.
var statistics = map[string]func(*view.Measured, *api.StatValue){
	"GPU utilization": func(m *view.Measured, v *api.StatValue) { m.Milli = milli(v) },
	"Memory state":    func(m *view.Measured, v *api.StatValue) { m.MemoryMiB = numerator(v) },
	"Temperature":     func(m *view.Measured, v *api.StatValue) { m.TemperatureC = numerator(v) },
	"Power usage":     func(m *view.Measured, v *api.StatValue) { m.PowerW = numerator(v) },
}

// milli is a percentage in thousandths.
func milli(v *api.StatValue) int64 {
	percent := numerator(v)
	if percent == view.Unmeasured {
		return view.Unmeasured
	}
	return 10 * percent
}

// numerator is the number of a statistic. A plugin may tell a text where it has none, as
// nomad-device-nvidia does of what a GPU does not support.
func numerator(v *api.StatValue) int64 {
	switch {
	case v.IntNumeratorVal != nil:
		return *v.IntNumeratorVal
	case v.FloatNumeratorVal != nil:
		return int64(*v.FloatNumeratorVal + 0.5)
	}
	return view.Unmeasured
}
