package nomad

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"golang.org/x/sync/errgroup"
)

// Measurements are a node's GPUs as measured, by UUID.
type Measurements map[string]view.Measured

// Measure reads the device statistics of a node from its Nomad client.
func (c *Client) Measure(ctx context.Context, nodeID string) (Measurements, error) {
	stats, err := c.api.Nodes().Stats(nodeID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	found := Measurements{}
	for _, group := range stats.DeviceStats {
		for id, s := range group.InstanceStats {
			if slice, _, err := gpu.ParseSliceID(id); err == nil && s != nil {
				found.add(slice.UUID, s)
			}
		}
	}
	return found, nil
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
	have, ok := m[uuid]
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
		m[uuid] = v
	}
}

// statistics says where a device statistic goes; the names are those of
// nomad-device-nvidia.
var statistics = map[string]func(*view.Measured, *api.StatValue){
	"GPU utilization": func(m *view.Measured, v *api.StatValue) { m.Milli = 10 * numerator(v) },
	"Memory state":    func(m *view.Measured, v *api.StatValue) { m.MemoryMiB = numerator(v) },
	"Temperature":     func(m *view.Measured, v *api.StatValue) { m.TemperatureC = numerator(v) },
	"Power usage":     func(m *view.Measured, v *api.StatValue) { m.PowerW = numerator(v) },
}

func numerator(v *api.StatValue) int64 {
	switch {
	case v.IntNumeratorVal != nil:
		return *v.IntNumeratorVal
	case v.FloatNumeratorVal != nil:
		return int64(*v.FloatNumeratorVal + 0.5)
	}
	return view.Unmeasured
}
