// SPDX-License-Identifier: MPL-2.0

package ascend_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/ascend"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/sysfstest"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// The driver tells of faults as they begin, end and happen: of the major and critical ones
// alone, of their own device, also after it was loaded anew. Only one that did not last
// is a problem in itself: what stands, a survey sees.
func TestTheDriverTellsOfFaults(t *testing.T) {
	k, topology := sysfstest.Kernel(t, machine)
	b := ascend.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute, Refresh: k.Refresh, Listen: func(ctx context.Context, _ func(sysfs.Uevent)) error {
		<-ctx.Done()
		return nil
	}})
	survey := func() {
		t.Helper()
		if m, err := b.Survey(); err != nil || len(m.GPUs) != 3 {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	survey()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	events, ended := make(chan hardware.Event), make(chan error)
	go func() {
		ended <- b.Watch(ctx, []string{topology.CardUUID(0), topology.CardUUID(1), topology.CardUUID(2)}, func(e hardware.Event) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
	}()
	dir := filepath.Dir(k.Root())
	happens := func(card int, f func(*sim.Condition)) {
		t.Helper()
		if err := sim.Update(dir, topology.CardUUID(card), f); err != nil {
			t.Fatal(err)
		}
		k.Refresh()
	}
	told := func(card int, name, code string) {
		t.Helper()
		select {
		case e := <-events:
			if e.UUID != topology.CardUUID(card) || e.Name != name || e.Problem.Code != code || e.GI != hardware.Absent {
				t.Errorf("it tells %+v, want %s", e, name)
			}
		case <-ctx.Done():
			t.Fatalf("nothing is told of %s", name)
		}
	}
	happens(0, func(c *sim.Condition) { c.Health, c.Faults = 1, []string{"80C98006"} }) // minor: it is not told
	happens(2, func(c *sim.Condition) { c.Health, c.Faults = 3, []string{"80E18402"} })
	told(2, "critical fault 80E18402 began", "")
	happens(2, func(c *sim.Condition) { c.Health, c.Faults = 0, nil })
	told(2, "critical fault 80E18402 ended", "")
	happens(1, func(c *sim.Condition) { c.PassedFaults = append(c.PassedFaults, "81078603:2") })
	told(1, "major fault 81078603 happened", "event-npu-81078603")
	if err := sim.WriteControl(dir, sim.Control{NoDriver: []string{"huawei"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Survey(); err == nil {
		t.Error("there are devices without a driver")
	}
	if err := sim.WriteControl(dir, sim.Control{}); err != nil {
		t.Fatal(err)
	}
	survey()
	happens(0, func(c *sim.Condition) { c.Health, c.Faults = 2, []string{"80CB8002"} })
	told(0, "major fault 80CB8002 began", "")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
