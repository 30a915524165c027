// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// Each GPU is asked for the events that it knows: one too many, and NVML refuses
// them all.
func TestWatchHearsWhatEachGPUKnows(t *testing.T) {
	r := newRig(t, "gpu {\n model = \"T4\"\n}\ngpu {\n model = \"H100\"\n}")
	if _, err := r.Survey(); err != nil {
		t.Fatal(err)
	}
	events := r.watch(2)
	heard := func(gpu int, kind uint64) hardware.Event {
		for {
			r.happen(gpu, func(c *sim.Condition) { c.Events = append(c.Events, kind) })
			select {
			case e := <-events:
				if e.UUID == r.uuid(gpu) {
					return e
				}
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	if e := heard(0, nvml.EventTypeDoubleBitEccError); e.Name != "uncorrected ECC error" || e.XID != 0 || e.Problem.Code != "" {
		t.Errorf("got %+v", e)
	}
	if e := heard(1, nvml.EventTypeGpuUnavailableError); e.Problem.Code != "event-gpu-unavailable" || e.Problem.Action == "" {
		t.Errorf("got %+v", e)
	}
}

func TestWatchThatHangsIsAbandoned(t *testing.T) {
	r := newRig(t, h100x3)
	r.impatient()
	if _, err := r.Survey(); err != nil {
		t.Fatal(err)
	}
	r.happen(1, func(c *sim.Condition) { c.Hang = []string{"RegisterEvents"} })
	events := r.watch(2)
	for heard := false; !heard; {
		r.happen(0, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 13) })
		select {
		case <-events:
			heard = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	r.happen(1, func(c *sim.Condition) { c.Hang = nil })
}

// A storm of XIDs arrives complete and in order.
func TestWatchReportsEveryXID(t *testing.T) {
	r := newRig(t, h100x3)
	if _, err := r.Survey(); err != nil {
		t.Fatal(err)
	}
	events := r.watch(2)
	// The watch hears of what happens after it has registered: make a first
	// event again and again until it arrives.
	first := hardware.Event{}
	for first.XID == 0 {
		r.happen(1, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 13) })
		select {
		case first = <-events:
		case <-time.After(50 * time.Millisecond):
		}
	}
	const storm = 500
	r.happen(1, func(c *sim.Condition) {
		for n := range storm {
			c.XIDs = append(c.XIDs, uint64(1000+n))
		}
	})
	for n := 0; n < storm; {
		e := <-events
		if e.XID == 13 {
			continue
		}
		if e.UUID != r.uuid(1) || e.XID != uint64(1000+n) {
			t.Fatalf("event %d is %+v", n, e)
		}
		n++
	}
}
