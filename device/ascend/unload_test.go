// SPDX-License-Identifier: MPL-2.0

package ascend_test

import (
	"path/filepath"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/sysfstest"
)

// A survey while the driver is being loaded or unloaded finds devices that answer a part of the
// questions, whatever error they give to the others: none has another name than before, and none that
// is divided is offered whole.
func TestASurveyDuringAnUnloadFindsNoOtherDevices(t *testing.T) {
	k, topology := sysfstest.Kernel(t, machine)
	b, dir := backend(k), filepath.Dir(k.Root())
	names := func(m hardware.Machine) (all []string) {
		for _, g := range m.GPUs {
			all = append(all, g.UUID)
			for _, p := range g.Partitions {
				all = append(all, p.UUID+" "+p.Profile)
			}
		}
		return all
	}
	before, err := b.Survey()
	if err != nil || len(names(before)) != 5 {
		t.Fatalf("found %q, %v", names(before), err)
	}
	for _, call := range calls {
		for _, code := range []int{-8012, -8255} {
			for card := range 3 {
				if err := sim.Update(dir, topology.CardUUID(card), func(c *sim.Condition) { c.Errors = map[string]int{call: code} }); err != nil {
					t.Fatal(err)
				}
			}
			found, err := b.Survey()
			if err != nil {
				continue // no device is found
			}
			known := map[string]bool{}
			for _, name := range names(before) {
				known[name] = true
			}
			for _, name := range names(found) {
				if !known[name] {
					t.Errorf("%s fails with %d: found %s", call, code, name)
				}
			}
			for i, g := range found.GPUs {
				if len(found.GPUs) == len(before.GPUs) && g.Partitioned != before.GPUs[i].Partitioned {
					t.Errorf("%s fails with %d: %s is partitioned: %t", call, code, g.UUID, g.Partitioned)
				}
			}
		}
	}
}
