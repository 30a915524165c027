// SPDX-License-Identifier: MPL-2.0

package sysfstest

import (
	"reflect"
	"slices"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// backend is what a vendor's devices are asked with.
type backend interface {
	Survey() (hardware.Machine, error)
	Reading(owner, uuid string) (hardware.Reading, error)
	Processes(owner, uuid string) ([]hardware.Process, error)
	Probe(what hardware.ProbeTarget) error
	CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error)
}

// OnlyItself fails where spoiling one device of a machine keeps a backend from finding the
// machine, or has changed another device. Then it asks everything of all that is found.
func OnlyItself(t *testing.T, seed uint64, b backend, whole hardware.Machine, spoiled int) {
	t.Helper()
	now, err := b.Survey()
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
		return
	}
	othersUnchanged(t, seed, whole, now, spoiled)
	ask(b, now)
}

// ask asks everything of every device and part of one: nothing may fail or wait.
func ask(b backend, m hardware.Machine) {
	var uuids []string
	for _, g := range m.GPUs {
		uuids = append(uuids, g.UUID)
		for _, p := range g.Partitions {
			uuids = append(uuids, p.UUID)
		}
	}
	for _, uuid := range uuids {
		_, _ = b.Reading(uuid, uuid)
		_, _ = b.Processes(uuid, uuid)
		_ = b.Probe(hardware.ProbeTarget{Owner: uuid, UUID: uuid})
	}
	_, _, _ = b.CDISpec("test/gpu", uuids)
}

// othersUnchanged fails where spoiling one device of a machine has changed another. What
// lies at the other end of a link, and where a device is counted, is the other's.
func othersUnchanged(t *testing.T, seed uint64, whole, now hardware.Machine, spoiled int) {
	t.Helper()
	for i, want := range whole.GPUs {
		at := slices.IndexFunc(now.GPUs, func(g hardware.GPU) bool { return g.UUID == want.UUID })
		if i != spoiled && (at < 0 || !reflect.DeepEqual(own(now.GPUs[at]), own(want))) {
			t.Errorf("seed %d: what happened to device %d changed %s: %+v", seed, spoiled, want.UUID, now.GPUs)
		}
	}
}

// own is a device without its links to others.
func own(g hardware.GPU) hardware.GPU {
	g.Links, g.Index, g.Position = hardware.Links{}, 0, 0
	g.Partitions = slices.Clone(g.Partitions)
	for i := range g.Partitions {
		g.Partitions[i].Position = 0
	}
	return g
}
