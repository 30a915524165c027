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
