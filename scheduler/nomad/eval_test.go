// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"testing"
)

// What Nomad says of a group that it does not place reaches people, with what keeps it
// from most nodes first, and without what the service itself wrote into the job.
func TestWhatNomadSaysOfAGroup(t *testing.T) {
	for name, tc := range map[string]struct{ eval, want string }{
		"several": {`{"ConstraintFiltered":{"${attr.kernel.name} = windows":2,"missing drivers":5},"DimensionExhausted":{"devices: no devices match request":2,"memory":1},"NodesEvaluated":9}`,
			"missing drivers on 5 nodes, ${attr.kernel.name} = windows on 2 nodes, exhausted devices: no devices match request on 2 nodes"},
		"held":    {`{"ConstraintFiltered":{"nomad-gpu: waits for quota: q holds 1 of 1 GPUs = admitted":3},"NodesEvaluated":3}`, ""},
		"no node": {`{"NodesEvaluated":0}`, "no node is ready in the job's datacenters and node pool"},
		"nothing": {`null`, ""},
	} {
		var e eventEval
		if err := json.Unmarshal([]byte(`{"FailedTGAllocs":{"g":`+tc.eval+`}}`), &e); err != nil {
			t.Fatal(err)
		}
		if b := e.blocked(nil); b.Why["g"] != tc.want || b.Missing["g"] != 1 {
			t.Errorf("%s: %q, %d missing; want %q", name, b.Why["g"], b.Missing["g"], tc.want)
		}
	}
}

// A group that waits for devices alone is told apart from one that Nomad has another reason not to start.
func TestWhatWaitsForDevicesAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		failed string
		want   bool
	}{
		"exhausted":                     {`{"DimensionExhausted":{"devices: no devices match request":2},"NodesEvaluated":2}`, true},
		"missing on other nodes":        {`{"ConstraintFiltered":{"missing devices":3,"computed class ineligible":4},"DimensionExhausted":{"devices: no devices match request":1}}`, true},
		"missing on all":                {`{"ConstraintFiltered":{"missing devices":3}}`, true},
		"not a candidate elsewhere":     {`{"ConstraintFiltered":{"${node.unique.id} set_contains_any a,b":7},"DimensionExhausted":{"devices: no devices match request":2}}`, true},
		"a driver is missing elsewhere": {`{"ConstraintFiltered":{"missing drivers":7},"DimensionExhausted":{"devices: no devices match request":2}}`, true},
		"a port is taken":               {`{"DimensionExhausted":{"network: reserved port collision http=8080":1}}`, false},
		"a port is taken on some":       {`{"DimensionExhausted":{"devices: no devices match request":2,"network: reserved port collision http=8080":1}}`, false},
		"memory is exhausted":           {`{"DimensionExhausted":{"devices: no devices match request":2,"memory":1}}`, false},
		"a volume is missing":           {`{"ConstraintFiltered":{"missing compatible host volumes":1},"DimensionExhausted":{"devices: no devices match request":2}}`, false},
		"no node is one of its own":     {`{"ConstraintFiltered":{"distinct_hosts":1},"DimensionExhausted":{"devices: no devices match request":2}}`, false},
		"only candidates elsewhere":     {`{"ConstraintFiltered":{"${node.unique.id} set_contains_any a,b":7}}`, false},
		"held":                          {`{"ConstraintFiltered":{"nomad-gpu: waits for quota: q holds 1 of 1 GPUs = admitted":3}}`, false},
		"no node is ready":              {`{"NodesEvaluated":0}`, false},
		"nothing is said":               {`null`, false},
	} {
		var e eventEval
		if err := json.Unmarshal([]byte(`{"FailedTGAllocs":{"g":`+tc.failed+`}}`), &e); err != nil {
			t.Fatal(err)
		}
		if got := e.blocked(nil).ForDevices["g"]; got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
