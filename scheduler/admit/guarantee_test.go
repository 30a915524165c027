// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"errors"
	"strings"
	"testing"
)

// The compute that an author of device blocks asks for in the driver's gpu block is part of what
// is asked for, however it is written: what is not a number yet is refused.
func TestTheGuaranteeOfDeviceBlocks(t *testing.T) {
	const none = -1
	for block, want := range map[string]int64{
		`{}`: 0, `[]`: 0, `{"compute":null}`: 0, `{"compute":0}`: 0, `{"compute":600}`: 600, `[{"compute":600}]`: 600, `{"compute":"600"}`: 600, `{"compute":1000}`: 1000,
		`{"memory":7,"compute":600}`: 600, `{"priority":[],"compute":"600"}`: 600, `{"compute":6e2}`: 600,
		`{"compute":1001}`: none, `{"compute":-1}`: none, `{"compute":0.5}`: 500, `{"compute":"0.5"}`: 500, `{"compute":1}`: 1000, `{"compute":"${NOMAD_META_c}"}`: none, `{"compute":"600.0"}`: none, `{"compute":true}`: none, `{"compute":""}`: none, `{"compute":[600]}`: none,
	} {
		for driver, counts := range map[string]bool{"containerd": true, "docker": false} {
			job := `{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"` + driver + `","Config":{"gpu":` + block + `},"Resources":{"Devices":[{"Name":"nvidia/slice"}]}}]}]}}`
			j, err := Read([]byte(job), Query{})
			var refusal *Refusal
			if refused := errors.As(err, &refusal); refused != (want == none && counts) || refused && !strings.Contains(refusal.Error(), "gpu.compute") {
				t.Errorf("%s, %s: %v", driver, block, err)
			}
			if err == nil && j.Asks[0].Tasks[0].ComputeMilli != max(0, want)*map[bool]int64{true: 1}[counts] {
				t.Errorf("%s, %s: %d", driver, block, j.Asks[0].Tasks[0].ComputeMilli)
			}
		}
	}
	key := func(compute string) string {
		j, err := Read([]byte(jobWith(`"Config":{"gpu":{`+compute+`}},"Resources":{"Devices":[{"Name":"nvidia/slice"}]}`)), Query{})
		if err != nil {
			t.Fatal(err)
		}
		return j.Asks[0].Key()
	}
	if key(`"compute":600`) == key(`"compute":601`) || key(`"compute":600`) != key(`"compute":"600"`) {
		t.Error("another guarantee is not another request")
	}
}
