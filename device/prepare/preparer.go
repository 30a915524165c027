// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Options are what a preparer works with.
type Options struct {
	Log hclog.Logger
	// Report takes note of how something went this time; nil is well.
	Report   func(what string, err error)
	Config   *config.Config
	Platform *fleet.Platform
	State    *statedir.Dir
	// Releases and Cordons are what operators have flagged.
	Releases, Cordons registry.Flags
	Daemons           Daemons
	// Cgroups reads the control groups of a process, also of one that ended a while ago.
	Cgroups func(pid int) []cgroup.Group
	// Wake asks for another pass.
	Wake func()
	Now  func() time.Time
}

// Preparer makes devices ready for their tasks. One goroutine prepares; reservations
// may come from others.
type Preparer struct {
	Options
	faults     faultClock
	background *background
	culprits   culprits
	cdi        []*cdiSpecs // by vendor
	timeslices timesliceHistory
	modes      *computeModes
	demands    *demands
	// versions are the newest CUDA and the like that each vendor's driver had last.
	versions map[string]string
}

// New makes a preparer that has done nothing yet.
func New(o Options) *Preparer {
	modes, err := openComputeModes(o.Platform.Moder, o.Config.StateDir, o.Platform.BootID)
	o.Report("compute modes", err)
	layouts, err := openDemands(o.Config.DataDir)
	o.Report("MIG layouts", err)
	return &Preparer{
		Options:    o,
		faults:     faultClock{ignore: o.Config.Health.Ignore, now: o.Now},
		background: newBackground(o.Wake, o.Now),
		culprits:   culprits{cgroups: o.Cgroups, found: map[string]culprit{}},
		cdi:        newCDISpecs(o.Platform, o.State.CDIDir()),
		timeslices: timesliceHistory{},
		modes:      modes,
		demands:    layouts,
		versions:   map[string]string{},
	}
}

// Prepare lets go of the devices that are to be released and gives the others what their
// tasks need. What fails is a fault of that unit only.
func (p *Preparer) Prepare(units []*plan.Unit, machine hardware.Machine, inputs plan.Inputs) {
	for vendor, d := range machine.Drivers {
		if d.Absent == nil && d.Platform != "" {
			p.versions[vendor] = d.Platform
		}
	}
	p.release(units)
	p.prepareSharing(units, machine, inputs)
}

// Wait returns when nothing is done in the background any more.
func (p *Preparer) Wait() { p.background.wait() }

// prepareSharing gives the units what their tasks need: CDI names, compute modes, MPS
// daemons, HAMi-core and time slices. What fails is a fault of that unit only.
func (p *Preparer) prepareSharing(units []*plan.Unit, machine hardware.Machine, inputs plan.Inputs) {
	p.faults.begin()
	for _, u := range units {
		u.Static = p.Config.MPS.Static && u.Sharing.Mechanism == gpu.SharingMPS
		p.checkVendor(u)
	}
	p.followDemand(units, inputs)
	p.prepareCDI(units)
	prepareHAMi(units, p.Config.HAMi, &p.faults)
	prepareMemoryLimits(units, p.Config, p.Platform.BootID, p.Report)
	p.prepareSeats(units, machine)
	p.prepareComputeModes(units, inputs) // before the MPS servers, which the mode is for
	p.prepareMPS(units, inputs)
	p.prepareTimeslices(units)
	p.layOut(units)
	for _, u := range units {
		p.checkComputeMode(u)
	}
	p.faults.end()
}

// checkComputeMode finds GPUs whose compute mode lets only one program in.
func (p *Preparer) checkComputeMode(u *plan.Unit) {
	if u.GPU.Exclusive && u.SharedFlag() && u.Sharing.Mechanism != gpu.SharingMPS {
		p.faults.add(u, gpu.Fault{Code: "compute-mode", Message: "the GPU's compute mode is not Default, so that only one program can use it",
			Action: "run nvidia-smi -i " + u.Owner() + " -c DEFAULT"})
	}
}

// checkVendor makes a fault of what the vendor's devices cannot.
func (p *Preparer) checkVendor(u *plan.Unit) {
	if why := u.Unable(); why != "" {
		p.faults.add(u, gpu.Fault{Code: "sharing-impossible", Message: why, Action: "change the plugin's configuration for this device"})
	}
}
