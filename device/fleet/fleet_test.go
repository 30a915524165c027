// SPDX-License-Identifier: MPL-2.0

package fleet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
)

// oneVendor sees fixed devices of one vendor.
type oneVendor struct {
	vendorObserver
	vendor string
	uuids  []string
	err    error
	failed chan struct{}
}

func (o *oneVendor) Survey() (hardware.Machine, error) {
	m := hardware.Machine{Drivers: map[string]hardware.Driver{o.vendor: {Version: o.vendor + "-1"}}}
	for _, uuid := range o.uuids {
		m.GPUs = append(m.GPUs, hardware.GPU{UUID: uuid, Vendor: o.vendor})
	}
	return m, o.err
}

func (o *oneVendor) Absence(err error) hardware.Driver {
	return hardware.Driver{Absent: &hardware.Problem{Code: o.vendor + "-absent", Message: err.Error()}}
}

func (o *oneVendor) Processes(owner, _ string) ([]hardware.Process, error) {
	return []hardware.Process{{PID: len(o.vendor)}}, nil
}

func (o *oneVendor) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	for _, uuid := range uuids {
		emit(hardware.Event{UUID: uuid})
	}
	select {
	case <-o.failed:
		return errors.New(o.vendor + " failed")
	case <-ctx.Done():
		return nil
	}
}

// Trouble with one vendor's devices does not reach another's, and what is asked of a device is asked
// of the backend that has seen it.
func TestFleetKeepsVendorsApart(t *testing.T) {
	amd := &oneVendor{vendor: "amd", uuids: []string{"A-1", "A-2"}, failed: make(chan struct{})}
	intel := &oneVendor{vendor: "intel", uuids: []string{"I-1"}}
	broken := &oneVendor{vendor: "nvidia", err: errors.New("no library")}
	p := newPlatform("boot", nil, &backend{vendor: "amd", observer: amd}, &backend{vendor: "intel", observer: intel}, &backend{vendor: "nvidia", observer: broken})
	m := p.Observer.Survey()
	if len(m.GPUs) != 3 || m.Drivers["amd"].Version != "amd-1" || m.Drivers["intel"].Absent != nil || m.Drivers["nvidia"].Absent.Message != "no library" {
		t.Errorf("the survey is %+v", m)
	}
	for owner, want := range map[string]int{"A-2": len("amd"), "I-1": len("intel")} {
		if processes, err := p.Observer.Processes(owner, owner); err != nil || processes[0].PID != want {
			t.Errorf("%s: %v, %v", owner, processes, err)
		}
	}
	if _, err := p.Observer.Processes("B-1", "B-1"); err == nil {
		t.Error("a device that was never seen answers")
	}
	if err := p.Resetter.Reset("I-1"); err == nil || err.Error() != "intel devices have no reset by this plugin" {
		t.Errorf("a reset that the vendor has not: %v", err)
	}
	// Events name their vendor, and one driver's failure ends the listening of all.
	heard := make(chan hardware.Event, 8)
	ended := make(chan error)
	go func() {
		ended <- p.Observer.Watch(t.Context(), []string{"A-1", "I-1", "B-1"}, func(e hardware.Event) { heard <- e })
	}()
	events := []string{}
	for range 2 {
		e := <-heard
		events = append(events, e.Vendor+" "+e.UUID)
	}
	slices.Sort(events)
	if !slices.Equal(events, []string{"amd A-1", "intel I-1"}) {
		t.Errorf("heard %v", events)
	}
	close(amd.failed)
	if err := <-ended; err == nil || err.Error() != "amd failed" {
		t.Errorf("listening ended with %v", err)
	}
}

// lateVendor answers the first question only.
type lateVendor struct {
	oneVendor
	asked int
}

func (o *lateVendor) Survey() (hardware.Machine, error) {
	if o.asked++; o.asked > 1 {
		return hardware.Machine{}, errors.New("no answer yet")
	}
	return o.oneVendor.Survey()
}

func (o *lateVendor) Absence(error) hardware.Driver {
	return hardware.Driver{Absent: &hardware.Problem{Code: "nvml-timeout", Tentative: true}}
}

// A driver that is late because everything is changes nothing of what is offered: not
// the health of the GPUs, nor the node's attributes. One that stays silent hangs.
func TestALateSurveyChangesNothing(t *testing.T) {
	begin, timeout := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 5*time.Second
	now, tracker := begin, health.New(config.Health{Timeout: timeout})
	p := newPlatform("boot", nil, &backend{vendor: "nvidia", observer: &lateVendor{oneVendor: oneVendor{vendor: "nvidia", uuids: []string{"N-1", "N-2"}}}})
	first := p.Observer.Survey()
	for _, tc := range []struct {
		after  time.Duration
		faults string
	}{{0, ""}, {hardware.HangTimeouts*timeout - time.Second, ""}, {time.Second, "nvml-timeout"}} {
		now = now.Add(tc.after)
		late := p.Observer.Survey()
		for _, g := range late.GPUs {
			tracker.Survey(g.UUID, g.Problems, now)
		}
		if d := late.Drivers["nvidia"]; d.Version != first.Drivers["nvidia"].Version || d.Err == nil || len(late.GPUs) != 2 {
			t.Errorf("a late survey makes %+v of %+v", late, first)
		}
		for _, g := range first.GPUs {
			got := ""
			for _, f := range tracker.Faults(g.UUID) {
				got += f.Code
			}
			if got != tc.faults {
				t.Errorf("%s after the last answer the faults are %q, want %q", now.Sub(begin), got, tc.faults)
			}
		}
	}
}
