package device

import (
	"context"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// observer is the part of a backend that looks at the hardware. Every call is
// bounded in time by the backend.
type observer interface {
	// Survey sees all GPUs. An error means that nothing was seen.
	Survey() (hardware.Machine, error)
	// Replaced reports whether the driver's library is another on disk than in this
	// process.
	Replaced() bool
	// Release does something while the backend holds no device open.
	Release(func() error) error
	// Watch reports events until the context ends or the driver fails.
	Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error
	// Reading and Processes ask a device; owner is the physical GPU's UUID.
	Reading(owner, uuid string) (hardware.Reading, error)
	Processes(owner, uuid string) ([]hardware.Process, error)
}

// prober tries whether a GPU that was in trouble works again.
type prober interface {
	Probe(what hardware.ProbeTarget) error
}

// timeslicer reads and sets the length of a GPU's time slices.
type timeslicer interface {
	Timeslice(uuid string) (string, error)
	SetTimeslice(uuid, level string) error
}

// resetter resets GPUs that no program uses, this one included.
type resetter interface {
	Reset(uuid string) error
}

// partitioner lays MIG instances out. It takes seconds.
type partitioner interface {
	Layout(uuid string, profiles []string) error
}

// cdiSource describes how containers get the devices.
type cdiSource interface {
	// CDISpec describes devices under a kind of ours, and says of which it cannot.
	CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error)
}

// platform is a machine's hardware with all that is done to it.
type platform struct {
	observer    observer
	prober      prober
	timeslicer  timeslicer
	resetter    resetter
	partitioner partitioner
	cdi         cdiSource
	// operatorCDI are the directories of the operator's CDI specs.
	operatorCDI []string
	bootID      string
	close       func()
}
