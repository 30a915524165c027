// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// training is a distributed training of four ranks, with more of its meta and its
// environment.
func training(kind, meta, env string) string {
	return `{"Job":{"ID":"train","Type":"batch","TaskGroups":[{"Name":"g","Count":4,"Tasks":[{"Name":"t","Driver":"containerd","Env":{` + env + `},"Meta":{"gpu":"8G","gpu_framework":"` +
		kind + `","gpu_distributed":"true"` + meta + `}}],"Constraints":[{"Operand":"distinct_hosts","RTarget":"true"}]}]}}`
}

const elasticMin = `,"gpu_gang_min":"2"`

// admittedTraining is the training as Nomad has it after its admission, with a count that
// was set there since.
func admittedTraining(t *testing.T, body, count string) *Job {
	t.Helper()
	j := mustRead(t, body)
	out := string(applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{trainingTask}}))
	if count != "" {
		out = strings.Replace(out, `"Count":4`, `"Count":`+count, 1)
	}
	return mustRead(t, out)
}

var trainingTask = TaskDecision{Task: "t", Devices: []Device{sliced(8, ofGiB)}, Holds: framework.Share{GPUs: 1, MemoryMiB: 8192, Type: "A100"}}

func mustRead(t *testing.T, body string) *Job {
	t.Helper()
	j, err := Read([]byte(body), Query{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func envOf(t *testing.T, body []byte) map[string]string {
	t.Helper()
	var read struct {
		Job struct {
			TaskGroups []struct {
				Tasks []struct{ Env map[string]string }
			}
		}
	}
	if err := json.Unmarshal(body, &read); err != nil {
		t.Fatal(err)
	}
	return read.Job.TaskGroups[0].Tasks[0].Env
}

func TestScalingARunningTraining(t *testing.T) {
	for name, tc := range map[string]struct {
		kind, meta, scaling string
		now                 string // the count since it was admitted
		to                  int
		refusal             string
	}{
		"PyTorch, more":             {kind: "pytorch", to: 5, refusal: "a distributed training of 4 allocations, and its ranks cannot learn another WORLD_SIZE"},
		"PyTorch, fewer":            {kind: "pytorch", to: 3, refusal: "cannot learn another WORLD_SIZE"},
		"PyTorch, as it is":         {kind: "pytorch", to: 4},
		"PyTorch, nothing":          {kind: "pytorch", to: 0},
		"PyTorch, back again":       {kind: "pytorch", now: "0", to: 4},
		"PyTorch, back to others":   {kind: "pytorch", now: "0", to: 3, refusal: "of 4 allocations"},
		"PyTorch, back from around": {kind: "pytorch", now: "3", to: 4},
		"TensorFlow":                {kind: "tensorflow", to: 5, refusal: "cannot learn another TF_CONFIG"},
		"torchrun, fewer":           {kind: "pytorch", meta: elasticMin, to: 2},
		"torchrun, too few":         {kind: "pytorch", meta: elasticMin, to: 1, refusal: "count 1 is not from 2 to 4"},
		"torchrun, too many":        {kind: "pytorch", meta: elasticMin, to: 5, refusal: "count 5 is not from 2 to 4"},
		"torchrun, up again":        {kind: "pytorch", meta: elasticMin, now: "2", to: 4},
		"torchrun, scaling block":   {kind: "pytorch", meta: elasticMin, scaling: `"Scaling":{"Max":6},`, to: 6},
		"torchrun, beyond it":       {kind: "pytorch", meta: elasticMin, scaling: `"Scaling":{"Max":6},`, to: 7, refusal: "count 7 is not from 2 to 6"},
		"another group":             {kind: "pytorch", meta: `,"gpu_distributed":"false"`, to: 9},
	} {
		t.Run(name, func(t *testing.T) {
			body := strings.Replace(training(tc.kind, tc.meta, ""), `"Count":4,`, `"Count":4,`+tc.scaling, 1)
			err := admittedTraining(t, body, tc.now).Asks[0].CheckScale(tc.to)
			var refusal *Refusal
			switch {
			case tc.refusal == "" && err != nil:
				t.Error(err)
			case tc.refusal != "" && (!errors.As(err, &refusal) || refusal.Status != 409 || !strings.Contains(refusal.Text, tc.refusal) || len(refusal.Details) == 0):
				t.Errorf("got %v, want %q with what to do", err, tc.refusal)
			}
		})
	}
}

// TestRanksFollowTheirCount: a count that is changed around the service shows as a
// difference between what is registered and what was decided, and writing the
// decision again tells the ranks. It is not one where torchrun counts.
func TestRanksFollowTheirCount(t *testing.T) {
	for name, tc := range map[string]struct {
		meta, env, count string
		differs          bool
		want             map[string]string
	}{
		"unchanged":         {want: map[string]string{"WORLD_SIZE": "4", "GPU_RANKS": "4"}},
		"more":              {count: "5", differs: true, want: map[string]string{"WORLD_SIZE": "5", "GPU_RANKS": "5"}},
		"fewer":             {count: "3", differs: true, want: map[string]string{"WORLD_SIZE": "3", "GPU_RANKS": "3"}},
		"none":              {count: "0", want: map[string]string{"WORLD_SIZE": "4", "GPU_RANKS": "4"}},
		"the author's":      {env: `"WORLD_SIZE":"9"`, count: "5", differs: true, want: map[string]string{"WORLD_SIZE": "9", "GPU_RANKS": "5"}},
		"forged":            {env: `"GPU_RANKS":"9"`, want: map[string]string{"WORLD_SIZE": "4", "GPU_RANKS": "4"}},
		"torchrun":          {meta: elasticMin, want: map[string]string{"PET_NNODES": "2:4", "GPU_RANKS": "2:4"}},
		"torchrun, fewer":   {meta: elasticMin, count: "3", want: map[string]string{"PET_NNODES": "2:4", "GPU_RANKS": "2:4"}},
		"torchrun, too few": {meta: elasticMin, count: "2", want: map[string]string{"PET_NNODES": "2:4", "GPU_RANKS": "2:4"}},
		"torchrun, more":    {meta: elasticMin, count: "5", differs: true, want: map[string]string{"PET_NNODES": "2:5", "GPU_RANKS": "2:5"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := admittedTraining(t, training("pytorch", tc.meta, tc.env), tc.count)
			ask := &j.Asks[0]
			d := ask.Was.Decision("g")
			if differs := ask.Registered() != ask.Fingerprint(&d); differs != tc.differs {
				t.Errorf("it differs: %v, want %v", differs, tc.differs)
			}
			body := applied(t, j, d)
			env := envOf(t, body)
			for key, want := range tc.want {
				if env[key] != want {
					t.Errorf("%s is %q, want %q", key, env[key], want)
				}
			}
			again := mustRead(t, string(body)).Asks[0]
			if again.Registered() != again.Fingerprint(&d) {
				t.Error("what was written anew differs still")
			}
			if tc.count == "0" {
				return // nothing is decided about it, so nothing is recorded
			}
			// The record keeps the ask without what was registered.
			again.Was = nil
			if ask := mustRead(t, string(body)).Asks[0]; again.Fingerprint(&d) != ask.Registered() {
				t.Error("the record's ask is not known again")
			}
		})
	}
}

// TestATrainingWithoutARecordIsWrittenAgain: what is registered is enough to write
// the very same job.
func TestATrainingWithoutARecordIsWrittenAgain(t *testing.T) {
	for _, kind := range []string{"pytorch", "tensorflow"} {
		first := applied(t, mustRead(t, training(kind, `,"gpu_mixed_precision":"true"`, "")), Decision{Group: "g", Tasks: []TaskDecision{trainingTask}})
		j := mustRead(t, string(first))
		if again := applied(t, j, j.Asks[0].Was.Decision("g")); string(again) != string(first) {
			t.Errorf("%s: written as\n%s\nand then as\n%s", kind, first, again)
		}
	}
}

// TestAnElasticTrainingSpreads: torchrun would take two allocations of one node for one.
func TestAnElasticTrainingSpreads(t *testing.T) {
	const hosts = `"Constraints":[{"Operand":"distinct_hosts","RTarget":"true"}]`
	body := training("pytorch", elasticMin, "")
	for name, tc := range map[string]struct {
		body string
		want Distinct
	}{
		"in the group":  {body, DistinctInGroup},
		"in the job":    {strings.Replace(body, `"ID":"train"`, `"ID":"train",`+hosts, 1), DistinctInJob},
		"nowhere":       {strings.Replace(body, hosts, `"Constraints":[]`, 1), ""},
		"taken back":    {strings.Replace(body, `"RTarget":"true"`, `"RTarget":"false"`, 1), ""},
		"without a say": {strings.Replace(body, `,"RTarget":"true"`, ``, 1), DistinctInGroup},
	} {
		j, err := Read([]byte(tc.body), Query{})
		switch {
		case tc.want == "" && (err == nil || !strings.Contains(err.Error(), "distinct_hosts = true")):
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err != nil || j.Asks[0].Distinct != tc.want):
			t.Errorf("%s: %v", name, err)
		}
		fixed, err := Read([]byte(strings.Replace(tc.body, elasticMin, "", 1)), Query{})
		if err != nil || fixed.Asks[0].Distinct != tc.want {
			t.Errorf("%s, with a fixed number: %v", name, err)
		}
	}
}
