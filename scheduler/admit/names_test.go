// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"fmt"
	"math/rand/v2"
	"reflect"
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

// A name of the operator's is a type, or a vendor and a type; what is written for a device
// of it is its vendor and its type, and however often that comes back it stands once.
func TestAnyResourceNameIsWrittenOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		text := ""
		for range 1 + r.IntN(6) {
			text += string("abcgnpu-_.0"[r.IntN(11)])
		}
		return text
	}
	for range 500 {
		vendor, kind, model := word(), word(), word()
		q := Query{Devices: []string{word(), word() + "/" + word(), []string{kind, vendor + "/" + kind}[r.IntN(2)]}}
		written := []string{vendor + "/" + kind, vendor + "/" + kind + "/" + model}[r.IntN(2)]
		body := jobWith(`"Meta":{"gpu":"1"}`)
		for range 1 + r.IntN(4) {
			j, err := Read([]byte(body), q)
			if err != nil {
				t.Fatalf("%s of %v: %v", written, q.Devices, err)
			}
			out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: written, Count: 1}}}}}}, Link{})
			if err != nil {
				t.Fatal(err)
			}
			body = string(out)
		}
		if n := strings.Count(body, `"Count":1`) + strings.Count(body, `"Count": 1`) - strings.Count(jobWith(""), `"Count":1`); n != 1 || strings.Count(body, fmt.Sprintf(`"Name":%q`, written)) != 1 {
			t.Fatalf("%s of %v stands %d times in %s", written, q.Devices, n, body)
		}
	}
}

// Whatever is asked for, models in order and models excluded among it, and however often a
// job comes back: after the first admission nothing changes, what was written is read as it
// was, and none of it is taken for the author's.
func TestAdmissionsOfModelsAreStable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	some := func(list ...string) string { return list[r.IntN(len(list))] }
	for range 300 {
		request := some("1", "2(H100|A100)", "0.5(!T4)", "8G(nvidia,H100|A100,!NVIDIA-A100-PCIE-40GB)", "1(!T4,!V100)")
		device := Device{Name: some("nvidia/gpu", "amd/partition", "acme/tpu", "tpu"), Count: 1 + r.Int64N(3), Prefer: some("", "H100/0")}
		for n := range r.IntN(3) {
			device.Constraints = append(device.Constraints, Constraint{LTarget: some("${device.attr.type}", "${device.model}"), Operand: "!=", RTarget: fmt.Sprint("T", n)})
			device.Rank = append(device.Rank, Affinity{LTarget: some("${device.attr.type}", "${device.attr.model}"), Operand: anyOf, RTarget: fmt.Sprint("H", n), Weight: 100 - n})
		}
		want := []Device{device}
		body, before := jobWith(fmt.Sprintf(`"Meta":{"gpu":%q}`, request)), ""
		for round := range 4 {
			j, err := Read([]byte(body), Query{Devices: []string{"acme/tpu", "tpu"}})
			if err != nil {
				t.Fatalf("%s, round %d: %v", request, round, err)
			}
			if got := j.Asks[0].Tasks[0].Request.String(); got != request {
				t.Fatalf("%s is read as %s", request, got)
			}
			if was := j.Asks[0].Was; round > 0 && !reflect.DeepEqual(was.Tasks[0].Devices, want) {
				t.Fatalf("%s, round %d: written %+v, read %+v", request, round, want, was.Tasks[0].Devices)
			}
			out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: want}}}}, Link{})
			if err != nil {
				t.Fatal(err)
			}
			if body = string(out); round > 0 && body != before {
				t.Fatalf("%s, round %d: %s, before %s", request, round, body, before)
			}
			before = body
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
	if got := j.Asks[0].String(); got != "4 x nvidia/slice + 2 x nvidia/gpu or 8 x nvidia/slice" {
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

// The alternatives of a block have what they do not say from the block around them, and
// each that is a GPU is bound to its queue's models, once.
func TestAlternativesAreBoundOnce(t *testing.T) {
	body := jobWith(`"Resources":{"Devices":[{"Name":"nvidia/gpu","Count":2,"Constraints":[{"LTarget":"${device.attr.memory}","RTarget":"40 GiB","Operand":">="}],` +
		`"FirstAvailable":[{"Count":1,"Constraints":[{"LTarget":"${device.attr.type}","RTarget":"GH200","Operand":"="}]},{"Name":"intel/fpga"},{}]}]}`)
	bound := Constraint{LTarget: "${device.attr.type}", Operand: anyOf, RTarget: "GH200,H100"}
	for round := range 3 {
		j, err := Read([]byte(body), Query{})
		if err != nil {
			t.Fatal(err)
		}
		d := j.Asks[0].Tasks[0].Devices
		if len(d) != 1 || d[0].Count != 1 || len(d[0].Constraints) != 2 || len(d[0].Or) != 1 || d[0].Or[0].Count != 2 || d[0].Or[0].Name != "nvidia/gpu" || len(d[0].Or[0].Constraints) != 1 {
			t.Fatalf("round %d: %+v", round, d)
		}
		if was := j.Asks[0].Was; round > 0 && (was.Tasks[0].Bound == nil || *was.Tasks[0].Bound != bound) {
			t.Errorf("round %d: the bound is read as %+v", round, was.Tasks[0].Bound)
		}
		out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Bound: &bound}}}}, Link{})
		if err != nil {
			t.Fatal(err)
		}
		body = string(out)
		if n := strings.Count(body, "nomad-gpu,GH200,H100"); n != 2 || !strings.Contains(body, `{"Name":"intel/fpga"}`) {
			t.Fatalf("round %d: %d bounds in %s", round, n, body)
		}
	}
}
