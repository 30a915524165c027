// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

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
