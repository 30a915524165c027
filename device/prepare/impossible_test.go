// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// wantedDaemons notes for which devices a daemon is asked.
type wantedDaemons struct {
	Daemons
	uuids []string
}

func (d *wantedDaemons) Want(specs []mps.Spec) {
	d.uuids = nil
	for _, s := range specs {
		d.uuids = append(d.uuids, s.UUID)
	}
}

func (d *wantedDaemons) Status(string) mps.Status { return mps.Status{Reason: "it is being started"} }

// A device that cannot be offered as it is configured gets nothing prepared, and says
// what is wrong with the configuration before anything else.
func TestWhatADeviceCannotIsNotPrepared(t *testing.T) {
	for name, tc := range map[string]struct {
		vendor, config string
		memoryMiB      int64
		says           string
		daemon         bool
	}{
		"MPS on NVIDIA's": {"nvidia", sliced, 81559, "mps-not-ready", true},
		"MPS on AMD's":    {"amd", sliced + "sharing = \"mps\"", 65536, `sharing "mps": amd devices know none, timeslice, dmem`, false},
		"MPS on Intel's":  {"intel", sliced + "sharing = \"mps\"", 65536, `sharing "mps": intel devices know`, false},
		"HAMi on AMD's":   {"amd", sliced + "sharing = \"hami\"\nhami { library = \"/none\" }", 65536, `sharing "hami": amd devices know`, false},
		"no memory known": {"intel", sliced, 0, "does not tell how much memory", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := testGPU(testUUID(0), 0)
			g.Vendor, g.MemoryMiB, g.Unsized = tc.vendor, tc.memoryMiB, tc.memoryMiB == 0
			machine := hardware.Machine{GPUs: []hardware.GPU{g}}
			asked := &wantedDaemons{}
			p := testPreparer(t, testConfig(t, tc.config), &fleet.Platform{Observer: &releasable{}}, asked)
			units := plan.Units(p.Config, testRegistry(), machine, quiet())
			p.prepareSharing(units, hardware.Machine{}, quiet())
			if (len(asked.uuids) > 0) != tc.daemon {
				t.Errorf("daemons are asked for %v", asked.uuids)
			}
			if f := units[0].Faults; len(f) != 1 || !strings.Contains(f[0].Code+": "+f[0].Message, tc.says) {
				t.Errorf("faults are %v", f)
			}
			if s := units[0].State(); (s.MPS != nil) != tc.daemon || s.HAMi != nil || s.Mode != gpu.ModeSlice {
				t.Errorf("the driver is told %+v", s)
			}
		})
	}
}
