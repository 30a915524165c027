// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
)

const patience = time.Minute

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Helper()
	if testing.Verbose() {
		fmt.Print(string(p))
	}
	return len(p), nil
}

func describeGroups(groups []*device.DeviceGroup) string {
	var b strings.Builder
	for _, g := range groups {
		healthy, trouble := 0, ""
		for _, d := range g.Devices {
			if d.Healthy {
				healthy++
			} else {
				trouble = d.HealthDesc
			}
		}
		fmt.Fprintf(&b, "%s/%s/%s %d of %d healthy %s\n", g.Vendor, g.Type, g.Name, healthy, len(g.Devices), trouble)
	}
	return b.String()
}

func allHealthy(groups []*device.DeviceGroup) bool {
	for _, g := range groups {
		for _, d := range g.Devices {
			if !d.Healthy {
				return false
			}
		}
	}
	return len(groups) > 0
}

const dgxConfig = `
	gpu {
		index = 0
		mode = "slice"
	}
	gpu {
		index = 1
		mode = "slice"
	}
	gpu {
		index = 2
		mode = "slice"
	}
	gpu {
		index = 3
		mode = "slice"
	}
`

func TestMixedMachine(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig)
	groups := r.until("all is healthy", allHealthy)
	t.Log(describeGroups(groups))
	res, err := r.Reserve([]string{groups[len(groups)-1].Devices[0].ID, groups[len(groups)-1].Devices[1].ID})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(res.Envs)
}
