// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What Nomad asks of a node without a constraint is read: the drivers of all tasks of the
// group, each once, and its volumes by name. None of it is written into the job.
func TestDriversAndVolumesOfAGroupAreRead(t *testing.T) {
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g",
		"Volumes":{"w":{"Type":"host","Source":"work","AccessMode":""},"d":{"Type":"host","Source":"data","ReadOnly":true},"c":{"Type":"csi","Source":"disk","PerAlloc":true},"none":null},
		"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1"}},{"Name":"log","Driver":"exec"},{"Name":"log2","Driver":"docker"},{"Name":"x"}]}]}}`)
	a := j.Asks[0]
	if diff := cmp.Diff([]string{"docker", "exec"}, a.Drivers); diff != "" {
		t.Errorf("drivers (-want +got):\n%s", diff)
	}
	want := []Volume{{Type: "csi", Source: "disk", PerAlloc: true}, {Type: "host", Source: "data", ReadOnly: true}, {Type: "host", Source: "work"}}
	if diff := cmp.Diff(want, a.Volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	without := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"raw_exec","Meta":{"gpu":"1"}}]}]}}`).Asks[0]
	one := Decision{Group: "g", Tasks: []TaskDecision{{Task: "t"}}}
	if with := a; with.Fingerprint(&one) != func() string {
		with.Drivers, with.Volumes = without.Drivers, without.Volumes
		return with.Fingerprint(&one)
	}() {
		t.Error("what is registered depends on them")
	}
}
