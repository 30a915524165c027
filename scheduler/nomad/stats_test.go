// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestWhereATaskWithASeatIsIsRead(t *testing.T) {
	told := func(text string) *api.StatValue { return &api.StatValue{StringVal: &text} }
	m := NewMeasurements()
	m.addTask("seat", &api.DeviceStats{Stats: &api.StatObject{Attributes: map[string]*api.StatValue{
		gpu.StatTaskSeat: told("suspended"), gpu.StatTaskSeatSince: told("2026-11-23T09:00:00Z"), gpu.StatTaskSeatFirst: told("soon"), gpu.StatTaskSeatWhy: told("its turn is over"),
	}}})
	use := m.Tasks["seat"]
	if use.Seat != gpu.SeatSuspended || use.SeatWhy != "its turn is over" || !use.SeatSince.Equal(time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)) || !use.SeatFirst.IsZero() {
		t.Errorf("read %+v", use)
	}
	m.addTask("none", &api.DeviceStats{Stats: &api.StatObject{}})
	if use, known := m.Tasks["none"]; known {
		t.Errorf("of nothing %+v is known", use)
	}
}
