// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Closeness follows from the links of each GPU, by UUID, whoever tells of them.
func TestClosenessOfMachines(t *testing.T) {
	at := func(uuid, bus string, numa int, links hardware.Links) hardware.GPU {
		return hardware.GPU{UUID: uuid, PCIBusID: bus, Traits: hardware.Traits{NUMANode: numa, Links: links}}
	}
	peers := func(p map[string]int) hardware.Links { return hardware.Links{Peers: p} }
	switches := func(n int) hardware.Links { return hardware.Links{Switches: n} }
	for name, tc := range map[string]struct {
		gpus []hardware.GPU
		want string
	}{
		"nothing is known":  {[]hardware.GPU{at("GPU-a", "a", -1, hardware.Links{}), at("GPU-b", "b", -1, hardware.Links{})}, ""},
		"NUMA nodes":        {[]hardware.GPU{at("GPU-a", "a", 0, hardware.Links{}), at("GPU-b", "b", 1, hardware.Links{}), at("GPU-c", "c", 0, hardware.Links{})}, "numa:0=GPU-a,GPU-c;numa:1=GPU-b"},
		"both ends tell":    {[]hardware.GPU{at("GPU-a", "a", -1, peers(map[string]int{"b": 2})), at("GPU-b", "b", -1, peers(map[string]int{"a": 2}))}, "nvlink:2=GPU-a,GPU-b"},
		"in another order":  {[]hardware.GPU{at("GPU-b", "b", -1, peers(map[string]int{"a": 2})), at("GPU-a", "a", -1, peers(map[string]int{"b": 2}))}, "nvlink:2=GPU-a,GPU-b"},
		"the first tells":   {[]hardware.GPU{at("GPU-a", "a", -1, peers(map[string]int{"b": 2})), at("GPU-b", "b", -1, hardware.Links{})}, "nvlink:2=GPU-a,GPU-b"},
		"the second tells":  {[]hardware.GPU{at("GPU-a", "a", -1, hardware.Links{}), at("GPU-b", "b", -1, peers(map[string]int{"a": 2}))}, "nvlink:2=GPU-a,GPU-b"},
		"a peer elsewhere":  {[]hardware.GPU{at("GPU-a", "a", -1, peers(map[string]int{"x": 4}))}, ""},
		"a triangle":        {[]hardware.GPU{at("GPU-a", "a", -1, peers(map[string]int{"b": 1, "c": 2})), at("GPU-b", "b", -1, peers(map[string]int{"a": 1, "c": 3})), at("GPU-c", "c", -1, peers(map[string]int{"a": 2, "b": 3}))}, "nvlink:1=GPU-a,GPU-b;nvlink:2=GPU-a,GPU-c;nvlink:3=GPU-b,GPU-c"},
		"switches":          {[]hardware.GPU{at("GPU-a", "a", 0, switches(18)), at("GPU-b", "b", 0, switches(18)), at("GPU-c", "c", 0, hardware.Links{})}, "numa:0=GPU-a,GPU-b,GPU-c;nvswitch:18=GPU-a,GPU-b"},
		"links are down":    {[]hardware.GPU{at("GPU-a", "a", -1, switches(18)), at("GPU-b", "b", -1, switches(17)), at("GPU-c", "c", -1, switches(18))}, "nvswitch:17=GPU-a,GPU-b,GPU-c"},
		"other kinds":       {[]hardware.GPU{at("GPU-a", "a", -1, hardware.Links{Kind: "xgmi", Peers: map[string]int{"b": 4}}), at("GPU-b", "b", -1, hardware.Links{Kind: "xgmi", Peers: map[string]int{"a": 4}})}, "xgmi:4=GPU-a,GPU-b"},
		"two fabrics apart": {[]hardware.GPU{at("GPU-a", "a", -1, hardware.Links{Kind: "hccs", Fabric: "1", Switches: 7}), at("GPU-b", "b", -1, hardware.Links{Kind: "hccs", Fabric: "2", Switches: 7})}, "hccs:7=GPU-a;hccs:7=GPU-b"},
	} {
		if got := closeness(tc.gpus).String(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
