package nvml_test

import (
	"context"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

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
	ctx, cancel := context.WithCancel(t.Context())
	events, ended := make(chan hardware.Event), make(chan error, 1)
	go func() {
		ended <- r.Watch(ctx, []string{r.uuid(0), r.uuid(1)}, func(e hardware.Event) { events <- e })
	}()
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
	if e := heard(0, gonvml.EventTypeDoubleBitEccError); e.Name != "uncorrected ECC error" || e.XID != 0 || e.Problem.Code != "" {
		t.Errorf("got %+v", e)
	}
	if e := heard(1, gonvml.EventTypeGpuUnavailableError); e.Problem.Code != "event-gpu-unavailable" || e.Problem.Action == "" {
		t.Errorf("got %+v", e)
	}
	cancel()
	for {
		select {
		case <-events:
		case <-ended:
			return
		}
	}
}
