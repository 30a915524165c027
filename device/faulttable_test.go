// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// faultRow is what happens to one card, and which of its group's instances are left.
type faultRow struct {
	card    int
	happens func(*sim.Condition)
	group   string // without the vendor
	left    int
	code    string
	beside  string // the prefix of groups that lose instances too, as they are the card's
}

// hideOnlyWhatTheyConcern has each fault happen to a machine of its own: the card is
// unhealthy with the code, no other is, no instance is lost, and all is well when it is over.
func hideOnlyWhatTheyConcern(t *testing.T, topology, vendor string, rows map[string]faultRow) {
	t.Helper()
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) {
			r, m := newRig(t), cardsOf(t, topology)
			r.start(topology, "")
			before := groupSizes(r.until("all is healthy", allHealthy))
			r.happen(m.CardUUID(tc.card), tc.happens)
			groups := r.until("it is ill", func(g []*device.DeviceGroup) bool { _, n := find(g, tc.group); return n == tc.left })
			for group, size := range groupSizes(groups) {
				others := group != vendor+"/"+tc.group && (tc.beside == "" || !strings.HasPrefix(group, vendor+"/"+tc.beside))
				if others && size != before[group] {
					t.Errorf("%s has %v instances, before %v", group, size, before[group])
				}
				if size[0] != before[group][0] {
					t.Errorf("%s has lost instances: Nomad would forget who holds them", group)
				}
			}
			g, _ := find(groups, tc.group)
			if !slices.ContainsFunc(g.Devices, func(d *device.Device) bool { return strings.HasPrefix(d.HealthDesc, tc.code+": ") }) {
				t.Errorf("no device says %s: %s", tc.code, describeGroups(groups))
			}
			r.happen(m.CardUUID(tc.card), func(c *sim.Condition) { *c = sim.Condition{} })
			r.until("it is well again", allHealthy)
		})
	}
}
