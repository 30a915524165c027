// SPDX-License-Identifier: MPL-2.0

package fleet

import (
	"context"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// backend is one vendor's devices with all that is done to them. What the vendor
// has not is nil.
type backend struct {
	vendor      string
	observer    vendorObserver
	prober      Prober
	timeslicer  timeslicer
	moder       ComputeModer
	resetter    resetter
	partitioner partitioner
	recutter    recutter
	cdi         CDISource
	close       func()
	// seen is the last survey that did not fail.
	seen hardware.Machine
}

// vendorObserver is the part of a backend that looks at the hardware. Every call is
// bounded in time by the backend.
type vendorObserver interface {
	// Survey sees all of the vendor's devices. An error means that nothing was
	// seen; it is a hardware.ErrAbsent where the driver is not there.
	Survey() (hardware.Machine, error)
	// Absence is what such an error means for the devices that were there.
	Absence(error) hardware.Driver
	// Release does something while the backend holds no device open.
	Release(func() error) error
	// Watch reports events until the context ends or the driver fails.
	Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error
	// Reading and Processes ask a device; owner is the physical GPU's UUID.
	Reading(owner, uuid string) (hardware.Reading, error)
	Processes(owner, uuid string) ([]hardware.Process, error)
}

// Observer looks at the devices of all vendors.
type Observer interface {
	// Survey sees everything that can be seen.
	Survey() hardware.Machine
	// Release does something while nothing of the owner's vendor is held open.
	Release(owner string, f func() error) error
	// Watch reports events until the context ends or a driver fails.
	Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error
	// Reading and Processes ask a device; owner is the physical GPU's UUID.
	Reading(owner, uuid string) (hardware.Reading, error)
	Processes(owner, uuid string) ([]hardware.Process, error)
}

// Prober tries whether a GPU that was in trouble works again.
type Prober interface {
	Probe(what hardware.ProbeTarget) error
}

// Timeslicer reads and sets the length of a GPU's time slices.
type timeslicer interface {
	Timeslice(uuid string) (string, error)
	SetTimeslice(uuid, level string) error
}

// ComputeModer reads and sets which programs a device lets in; owner is the physical
// GPU's UUID.
type ComputeModer interface {
	ComputeMode(owner, uuid string) (hardware.ComputeMode, error)
	SetComputeMode(owner, uuid string, mode hardware.ComputeMode) error
}

// Resetter resets GPUs that no program uses, this one included.
type resetter interface {
	Reset(uuid string) error
}

// Partitioner lays a GPU's partitions out. It takes seconds.
type partitioner interface {
	Layout(uuid string, profiles []string) error
}

// recutter changes some of a GPU's MIG instances and leaves the others alone.
type recutter interface {
	// MIGPlaces are the profiles that a GPU can have, and the places of its instances.
	MIGPlaces(uuid string) ([]gpu.MIGProfile, []gpu.MIGInstance, error)
	// Recut can be repeated. It takes seconds.
	Recut(uuid string, remove, add []gpu.MIGPlace) error
}

// CDISource describes how containers get the devices.
type CDISource interface {
	// CDISpec describes devices under a kind of ours, with errors for those that it cannot describe.
	CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error)
	// CheckCDI reports faults of a spec on this machine, for some of its devices
	// by name.
	CheckCDI(s *specs.Spec, names []string) error
	// Stands says which device an operator's CDI device is, by UUID; empty for none.
	Stands(d specs.Device) string
}

// Platform is a machine's hardware with all that is done to it.
type Platform struct {
	Observer    Observer
	Prober      Prober
	Timeslicer  timeslicer
	Moder       ComputeModer
	Resetter    resetter
	Partitioner partitioner
	Recutter    recutter
	// CDI are the sources of CDI specs by vendor.
	CDI map[string]CDISource
	// OperatorCDI are the directories of the operator's CDI specs.
	OperatorCDI []string
	BootID      string
	Close       func()
}
