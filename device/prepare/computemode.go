// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/datafile"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// computeModes keeps devices with MPS daemons exclusive, where the operator wants
// it: they let in the MPS server and no other program, so that one which leaves MPS
// gets an error. A device is open, to every program, while one task holds all of it,
// since such a task runs without MPS.
//
// Reserve sets the mode before it answers, since from then on a task holds the device. The
// end of a task changes nothing: one that held all of a device finds it open when it is
// started again.
//
// A changed mode is written down first, for this boot: the driver forgets modes
// with a reboot. So the next process of the plugin, also after a crash, knows what
// to put back.
type computeModes struct {
	driver fleet.ComputeModer
	path   string
	bootID string

	mu      sync.Mutex
	devices map[string]modeRecord
	saved   []byte
}

// modeRecord is one device whose mode the plugin keeps.
type modeRecord struct {
	// Owner is the physical GPU, Found the mode before the plugin changed it.
	Owner string               `json:"owner"`
	Found hardware.ComputeMode `json:"found"`
	// Open is set while one task holds all of the device; DecidedAt is when a
	// reservation decided that.
	Open      bool      `json:"open,omitempty"`
	DecidedAt time.Time `json:"decided_at,omitzero"`
}

type modesFile struct {
	Version int                   `json:"version"`
	BootID  string                `json:"boot_id"`
	Devices map[string]modeRecord `json:"devices"`
}

const (
	modesVersion = 1
	modesName    = "compute-modes.json"
)

// openComputeModes reads what an earlier process of this boot has left.
func openComputeModes(driver fleet.ComputeModer, stateDir, bootID string) (*computeModes, error) {
	m := &computeModes{driver: driver, path: filepath.Join(stateDir, modesName), bootID: bootID, devices: map[string]modeRecord{}}
	file, text, err := datafile.Read[modesFile](m.path, modesVersion)
	if err != nil {
		return m, fmt.Errorf("read compute modes: %w", err)
	}
	if file.BootID == bootID && file.Devices != nil {
		m.devices, m.saved = file.Devices, text
	}
	return m, nil
}

// keep makes sure of a device's mode and reports whether it is open. wholeSince is
// when a task began that holds all of it, zero for none.
func (m *computeModes) keep(owner, uuid string, wholeSince time.Time) (open bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, known := m.devices[uuid]
	if !known {
		if r, err = m.find(owner, uuid); err != nil {
			return false, err
		}
	}
	r.Open = r.Open || wholeSince.After(r.DecidedAt)
	return r.Open, m.put(uuid, r)
}

// reserve is keep for a reservation of a device, of all of it or of a part.
func (m *computeModes) reserve(owner, uuid string, whole bool, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, known := m.devices[uuid]
	if !known {
		var err error
		if r, err = m.find(owner, uuid); err != nil {
			return err
		}
	}
	r.Open, r.DecidedAt = whole, now.UTC()
	return m.put(uuid, r)
}

// find makes the record of a device that was not kept before.
func (m *computeModes) find(owner, uuid string) (modeRecord, error) {
	found, err := m.driver.ComputeMode(owner, uuid)
	return modeRecord{Owner: owner, Found: found}, err
}

// put writes a record down, sets the device's mode where it is another, and reads
// it back. The caller holds mu.
func (m *computeModes) put(uuid string, r modeRecord) error {
	m.devices[uuid] = r
	if err := m.save(); err != nil {
		return err
	}
	wanted := hardware.ComputeExclusive
	if r.Open {
		wanted = hardware.ComputeDefault
	}
	return m.set(r.Owner, uuid, wanted)
}

func (m *computeModes) set(owner, uuid string, wanted hardware.ComputeMode) error {
	now, err := m.driver.ComputeMode(owner, uuid)
	if err != nil || now == wanted {
		return err
	}
	if err := m.driver.SetComputeMode(owner, uuid, wanted); err != nil {
		return err
	}
	now, err = m.driver.ComputeMode(owner, uuid)
	if err == nil && now != wanted {
		err = fmt.Errorf("the compute mode of %s is %s after it was set to %s", uuid, now, wanted)
	}
	return err
}

// letGo puts back the modes of devices that are not kept any more.
func (m *computeModes) letGo(kept map[string]bool) map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	problems := map[string]error{}
	for _, uuid := range slices.Sorted(maps.Keys(m.devices)) {
		if kept[uuid] {
			continue
		}
		r := m.devices[uuid]
		if problems[uuid] = m.set(r.Owner, uuid, r.Found); problems[uuid] == nil {
			delete(m.devices, uuid)
		}
	}
	if err := m.save(); err != nil {
		problems[""] = err
	}
	return problems
}

// save writes the records, and no file where there are none.
func (m *computeModes) save() (err error) {
	if len(m.devices) == 0 && m.saved == nil {
		return nil
	}
	m.saved, err = datafile.Write(m.path, modesFile{modesVersion, m.bootID, m.devices}, m.saved)
	return err
}

// exclusive reports whether a unit is to let in its MPS server only.
func exclusive(c *config.Config, u *plan.Unit) bool {
	return c.MPS.Exclusive && u.SharedFlag() && u.NeedsDaemon()
}

// prepareComputeModes keeps the modes of the units that are to be exclusive, and
// puts back those of others.
func (p *Preparer) prepareComputeModes(units []*plan.Unit, inputs plan.Inputs) {
	kept := map[string]bool{}
	for _, u := range units {
		if !exclusive(p.Config, u) {
			continue
		}
		kept[u.UUID] = true
		if u.Gone {
			continue
		}
		open, err := p.modes.keep(u.Owner(), u.UUID, u.WholeSince(inputs.Leases))
		if err != nil {
			p.faults.add(u, gpu.Fault{Code: "compute-mode-not-set", Message: "the compute mode could not be set: " + err.Error(),
				Action: "run nvidia-smi -i " + u.UUID + " -c EXCLUSIVE_PROCESS to see why, or take exclusive out of the plugin's mps block"})
			continue
		}
		u.Exclusive = !open
	}
	for uuid, err := range p.modes.letGo(kept) {
		p.Report("compute mode of "+uuid, err)
	}
}

// Reserve gives the devices of a reservation the modes that its task needs.
func (p *Preparer) Reserve(units []*plan.Unit, made gpu.Reservation) error {
	for _, d := range made.Devices {
		at := slices.IndexFunc(units, func(u *plan.Unit) bool { return u.UUID == d.UUID })
		if at < 0 || !exclusive(p.Config, units[at]) {
			continue
		}
		if err := p.modes.reserve(units[at].Owner(), d.UUID, d.Whole(), p.Now()); err != nil {
			return fmt.Errorf("reserve: %w; the task would not be let in, or not be held to its share", err)
		}
	}
	return nil
}
