// SPDX-License-Identifier: MPL-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// fleet is the devices of all vendors as if they were one's. A question about a
// device goes to the backend that has seen it; trouble with one
// vendor's devices does not reach another's.
type fleet struct {
	backends []*backend
	owners   sync.Map // UUID of a physical device: *backend
}

// newPlatform puts backends together.
func newPlatform(bootID string, operatorCDI []string, backends ...*backend) *Platform {
	f := &fleet{backends: backends}
	p := &Platform{Observer: f, Prober: f, Timeslicer: f, Moder: f, Resetter: f, Partitioner: f, Recutter: f, CDI: map[string]CDISource{}, OperatorCDI: operatorCDI, BootID: bootID, Close: f.close}
	for _, b := range backends {
		p.CDI[b.vendor] = b.cdi
	}
	return p
}

func (f *fleet) close() {
	for _, b := range f.backends {
		b.close()
	}
}

// Survey asks every backend, all at once: each has its own bound on time.
func (f *fleet) Survey() hardware.Machine {
	found := make([]hardware.Machine, len(f.backends))
	var asking sync.WaitGroup
	for n, b := range f.backends {
		asking.Go(func() {
			machine, err := b.observer.Survey()
			if err != nil {
				machine = b.unseen(err)
			} else {
				b.seen = machine
			}
			found[n] = machine
		})
	}
	asking.Wait()
	all := hardware.Machine{Drivers: map[string]hardware.Driver{}}
	for n, b := range f.backends {
		all.Drivers[b.vendor] = found[n].Drivers[b.vendor]
		for _, g := range found[n].GPUs {
			f.owners.Store(g.UUID, b)
			all.GPUs = append(all.GPUs, g)
		}
	}
	return all
}

// unseen is what a survey that failed makes of the devices. While a driver is late, what
// was seen last stands.
func (b *backend) unseen(err error) hardware.Machine {
	driver := b.observer.Absence(err)
	driver.Err = err
	var machine hardware.Machine
	if driver.Absent.Tentative {
		last := b.seen.Drivers[b.vendor]
		driver.Version, driver.Platform = last.Version, last.Platform
		for _, g := range b.seen.GPUs {
			g.Problems = append(slices.Clone(g.Problems), *driver.Absent)
			machine.GPUs = append(machine.GPUs, g)
		}
	}
	machine.Drivers = map[string]hardware.Driver{b.vendor: driver}
	return machine
}

// of finds the backend of a physical device.
func (f *fleet) of(owner string) (*backend, error) {
	b, ok := f.owners.Load(owner)
	if !ok {
		return nil, fmt.Errorf("device %s has not been seen", owner)
	}
	return b.(*backend), nil
}

// partOf finds the part of a device's backend that does something, such as its
// resetter; a vendor whose devices do not know that has none.
func partOf[T comparable](f *fleet, owner, what string, part func(*backend) T) (T, error) {
	var none T
	b, err := f.of(owner)
	if err != nil {
		return none, err
	}
	found := part(b)
	if found == none {
		return none, fmt.Errorf("%s devices have no %s", b.vendor, what)
	}
	return found, nil
}

func (f *fleet) Release(owner string, do func() error) error {
	b, err := f.of(owner)
	if err != nil {
		return err
	}
	return b.observer.Release(do)
}

func (f *fleet) Reading(owner, uuid string) (hardware.Reading, error) {
	b, err := f.of(owner)
	if err != nil {
		return hardware.NoReading(), err
	}
	return b.observer.Reading(owner, uuid)
}

func (f *fleet) Processes(owner, uuid string) ([]hardware.Process, error) {
	b, err := f.of(owner)
	if err != nil {
		return nil, err
	}
	return b.observer.Processes(owner, uuid)
}

// Watch listens to the drivers of the given devices until the first fails.
func (f *fleet) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	watched := map[*backend][]string{}
	for _, uuid := range uuids {
		if b, err := f.of(uuid); err == nil {
			watched[b] = append(watched[b], uuid)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(watched))
	var emitting sync.Mutex
	for b, own := range watched {
		go func() {
			ended <- b.observer.Watch(ctx, own, func(e hardware.Event) {
				emitting.Lock()
				defer emitting.Unlock()
				e.Vendor = b.vendor
				emit(e)
			})
		}()
	}
	var all []error
	for range watched {
		all = append(all, <-ended)
		cancel()
	}
	return errors.Join(all...)
}

func (f *fleet) Probe(what hardware.ProbeTarget) error {
	b, err := f.of(what.Owner)
	if err != nil {
		return err
	}
	return b.prober.Probe(what)
}

func (f *fleet) timeslicerOf(uuid string) (timeslicer, error) {
	return partOf(f, uuid, "time slices that can be set", func(b *backend) timeslicer { return b.timeslicer })
}

func (f *fleet) Timeslice(uuid string) (string, error) {
	t, err := f.timeslicerOf(uuid)
	if err != nil {
		return "", err
	}
	return t.Timeslice(uuid)
}

func (f *fleet) SetTimeslice(uuid, level string) error {
	t, err := f.timeslicerOf(uuid)
	if err != nil {
		return err
	}
	return t.SetTimeslice(uuid, level)
}

func (f *fleet) moderOf(owner string) (ComputeModer, error) {
	return partOf(f, owner, "compute modes", func(b *backend) ComputeModer { return b.moder })
}

func (f *fleet) ComputeMode(owner, uuid string) (hardware.ComputeMode, error) {
	m, err := f.moderOf(owner)
	if err != nil {
		return "", err
	}
	return m.ComputeMode(owner, uuid)
}

func (f *fleet) SetComputeMode(owner, uuid string, mode hardware.ComputeMode) error {
	m, err := f.moderOf(owner)
	if err != nil {
		return err
	}
	return m.SetComputeMode(owner, uuid, mode)
}

func (f *fleet) Reset(uuid string) error {
	r, err := partOf(f, uuid, "reset by this plugin", func(b *backend) resetter { return b.resetter })
	if err != nil {
		return err
	}
	return r.Reset(uuid)
}

func (f *fleet) Layout(uuid string, profiles []string) error {
	p, err := partOf(f, uuid, "partitions that this plugin can lay out", func(b *backend) partitioner { return b.partitioner })
	if err != nil {
		return err
	}
	return p.Layout(uuid, profiles)
}

func (f *fleet) recutterOf(uuid string) (recutter, error) {
	return partOf(f, uuid, "MIG layout that follows demand", func(b *backend) recutter { return b.recutter })
}

func (f *fleet) MIGPlaces(uuid string) ([]gpu.MIGProfile, []gpu.MIGInstance, error) {
	r, err := f.recutterOf(uuid)
	if err != nil {
		return nil, nil, err
	}
	return r.MIGPlaces(uuid)
}

func (f *fleet) Recut(uuid string, remove, add []gpu.MIGPlace) error {
	r, err := f.recutterOf(uuid)
	if err != nil {
		return err
	}
	return r.Recut(uuid, remove, add)
}
