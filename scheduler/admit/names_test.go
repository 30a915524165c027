package admit

import (
	"fmt"
	"strings"
	"testing"
)

// Whatever the operator calls the devices, what an admission wrote is known again
// when the job comes back: a block that was not would stand beside its successor.
func TestDeviceBlocksAreNotDoubled(t *testing.T) {
	for _, name := range []string{"nvidia/gpu", "acme/tpu", "tpu", "nvidia/card", "amd/partition", "huawei/vnpu", "nvidia/mig-shared", "nvidia/mig/3g.20gb", "intel/vf"} {
		q := Query{Devices: []string{"acme/tpu", "tpu", "nvidia/card"}}
		body := jobWith(`"Meta":{"gpu":"1"},"Resources":{"Devices":[{"Name":"intel/fpga","Count":1}]}`)
		for round := range 3 {
			j, err := Read([]byte(body), q)
			if err != nil {
				t.Fatalf("%s, round %d: %v", name, round, err)
			}
			out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: name, Count: 1}}}}}}, Link{})
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(out), fmt.Sprintf(`"Name":%q`, name)); n != 1 || !strings.Contains(string(out), "intel/fpga") {
				t.Errorf("%s, round %d: %d blocks in %s", name, round, n, out)
			}
			body = string(out)
		}
	}
}

// Fields and blocks of a newer Nomad pass as they are, and ask for what they ask.
func TestBlocksOfANewerNomad(t *testing.T) {
	first := `{"Name":"nvidia/slice","Count":4,"ShareDevices":{}}`
	choice := `{"FirstAvailable":[{"Name":"intel/fpga"},{"Name":"nvidia/gpu","Count":2},{"Name":"nvidia/slice","Count":8}]}`
	none := `{"FirstAvailable":[{"Name":"intel/fpga"}]}`
	j, err := Read([]byte(jobWith(`"Resources":{"Devices":[`+first+`,`+choice+`,`+none+`]}`)), Query{})
	if err != nil {
		t.Fatal(err)
	}
	if got := j.Asks[0].String(); got != "4 x nvidia/slice + 2 x nvidia/gpu" {
		t.Errorf("it asks for %s", got)
	}
	out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{}, {Prefer: "x"}}}}}}, Link{})
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range []string{first, choice, none} {
		if !strings.Contains(string(out), block) {
			t.Errorf("%s is not kept in %s", block, out)
		}
	}
}
