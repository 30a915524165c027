package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
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
	m := p.observer.Survey()
	if len(m.GPUs) != 3 || m.Drivers["amd"].Version != "amd-1" || m.Drivers["intel"].Absent != nil || m.Drivers["nvidia"].Absent.Message != "no library" {
		t.Errorf("the survey is %+v", m)
	}
	for owner, want := range map[string]int{"A-2": len("amd"), "I-1": len("intel")} {
		if processes, err := p.observer.Processes(owner, owner); err != nil || processes[0].PID != want {
			t.Errorf("%s: %v, %v", owner, processes, err)
		}
	}
	if _, err := p.observer.Processes("B-1", "B-1"); err == nil {
		t.Error("a device that was never seen answers")
	}
	if err := p.resetter.Reset("I-1"); err == nil || err.Error() != "intel devices have no reset by this plugin" {
		t.Errorf("a reset that the vendor has not: %v", err)
	}
	// Events name their vendor, and one driver's failure ends the listening of all.
	heard := make(chan hardware.Event, 8)
	ended := make(chan error)
	go func() {
		ended <- p.observer.Watch(t.Context(), []string{"A-1", "I-1", "B-1"}, func(e hardware.Event) { heard <- e })
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
	now := epoch
	r := testReconciler(testConfig(t, ""))
	r.now = func() time.Time { return now }
	r.platform = newPlatform("boot", nil, &backend{vendor: "nvidia", observer: &lateVendor{oneVendor: oneVendor{vendor: "nvidia", uuids: []string{"N-1", "N-2"}}}})
	first := r.platform.observer.Survey()
	for _, tc := range []struct {
		after  time.Duration
		faults string
	}{{0, ""}, {hardware.HangTimeouts*r.config.Health.Timeout - time.Second, ""}, {time.Second, "nvml-timeout"}} {
		now = now.Add(tc.after)
		late := r.platform.observer.Survey()
		r.observe(late)
		if d := late.Drivers["nvidia"]; d.Version != first.Drivers["nvidia"].Version || d.Err == nil || len(late.GPUs) != 2 {
			t.Errorf("a late survey makes %+v of %+v", late, first)
		}
		for _, g := range first.GPUs {
			if got := faultCodes(r.health.Faults(g.UUID)); got != tc.faults {
				t.Errorf("%s after the last answer the faults are %q, want %q", now.Sub(epoch), got, tc.faults)
			}
		}
	}
}

// A machine without GPUs says so in one line, with each vendor's reason once.
func TestNothingSeenSaysWhyOfEveryVendor(t *testing.T) {
	of := func(err error) hardware.Driver { return hardware.Driver{Absent: &hardware.Problem{}, Err: err} }
	none := hardware.Machine{Drivers: map[string]hardware.Driver{
		"nvidia": of(fmt.Errorf("%w: the library is not found", hardware.Absence("NVML is not available"))),
		"amd":    of(hardware.Absence("amdgpu is not loaded")),
	}}
	err := nothingSeen(none)
	if !errors.Is(err, hardware.ErrAbsent) {
		t.Errorf("%v is no absence", err)
	}
	if want := "no GPU driver answers: amd: amdgpu is not loaded; nvidia: NVML is not available: the library is not found. " +
		"Install or load the driver, or name a configuration with a simulation block"; err.Error() != want {
		t.Errorf("got  %q\nwant %q", err, want)
	}
	none.Drivers["intel"] = hardware.Driver{}
	if err := nothingSeen(none); err != nil {
		t.Errorf("with one driver: %v", err)
	}
}
