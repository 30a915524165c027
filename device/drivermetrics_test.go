// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// The plugin serves what the driver wrote, and nothing where no driver ever ran.
func TestWhatTheDriverDidIsServed(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "")
	names := []string{"nomad_gpu_driver_starts_total", "nomad_gpu_driver_start_seconds", "nomad_gpu_driver_pulls_total", "nomad_gpu_driver_pull_seconds", "nomad_gpu_driver_kills_total"}
	before := r.gatherAs(hardware.Reading{}, false)
	for _, name := range names {
		if _, served := before[name]; served {
			t.Errorf("%s is served without a driver", name)
		}
	}
	c := gpu.NewDriverCounts()
	c.Starts[gpu.StartDone], c.Starts["image"], c.Kills["memory"] = 3, 1, 2
	c.StartTimes.Add(2 * time.Second)
	if err := r.openState().WriteDriverCounts(c); err != nil {
		t.Fatal(err)
	}
	after := r.gatherAs(hardware.Reading{}, false)
	for _, name := range names {
		if _, served := after[name]; !served {
			t.Errorf("%s is not served", name)
		}
	}
	for name, want := range map[string]sample{
		"nomad_gpu_driver_starts_total": {map[string]string{"hostname": "host", "outcome": "image"}, 1},
		"nomad_gpu_driver_kills_total":  {map[string]string{"hostname": "host", "reason": "memory"}, 2},
		"nomad_gpu_driver_pulls_total":  {map[string]string{"hostname": "host", "outcome": "failed"}, 0},
	} {
		found := slices.ContainsFunc(after[name].samples, func(s sample) bool {
			return s.value == want.value && len(s.labels) == 2 && s.labels["hostname"] == "host" && (s.labels["outcome"]+s.labels["reason"] == want.labels["outcome"]+want.labels["reason"])
		})
		if !found || after[name].kind != "COUNTER" {
			t.Errorf("%s: %+v, want %+v", name, after[name], want)
		}
	}
	if kind := after["nomad_gpu_driver_start_seconds"].kind; kind != "HISTOGRAM" {
		t.Errorf("start_seconds is a %s", kind)
	}
}
