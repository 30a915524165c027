// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// TestFieldsOfAnotherTypeAreRefused: a job that is not understood in full might ask for
// GPUs where the service does not look. So is what an admission would have to change and cannot read.
func TestFieldsOfAnotherTypeAreRefused(t *testing.T) {
	const distributed = `"gpu_framework":"pytorch","gpu_distributed":"true"`
	job := func(jobField, groupField, taskField, resource, device string) string {
		return fmt.Sprintf(`{"Job":{"ID":"j"%s,"TaskGroups":[{"Name":"g","Count":1%s,"Tasks":[{"Name":"t","Driver":"containerd","Meta":{"gpu":"1",%s}%s,"Resources":{"CPU":1%s,"Devices":[%s]}}]}]}}`,
			jobField, groupField, distributed, taskField, resource, device)
	}
	bodies := map[string]string{}
	for _, field := range []string{`"Region":7`, `"Namespace":7`, `"Type":7`, `"NodePool":7`, `"Priority":"x"`, `"Datacenters":7`, `"Stop":7`, `"Meta":7`, `"Constraints":7`} {
		bodies["job "+field] = job(","+field, "", "", "", "")
	}
	for _, field := range []string{`"Meta":7`, `"Constraints":7`, `"Affinities":7`, `"Networks":7`, `"Networks":[7]`, `"Networks":[{"DynamicPorts":7}]`, `"Scaling":7`, `"Services":7`, `"Update":7`, `"Update":{"Canary":"x"}`} {
		bodies["group "+field] = job("", ","+field, "", "", "")
	}
	for _, field := range []string{`"Constraints":7`, `"Lifecycle":7`, `"Config":7`, `"Env":7`, `"Env":{"A":7}`, `"Templates":7`} {
		bodies["task "+field] = job("", "", ","+field, "", "")
	}
	for _, field := range []string{`"Cores":"x"`, `"MemoryMB":"x"`} {
		bodies["resources "+field] = job("", "", "", ","+field, "")
	}
	for _, field := range []string{`7`, `{"Name":7}`, `{"Name":"nvidia/gpu","Count":"x"}`, `{"Name":"nvidia/gpu","Constraints":7}`} {
		bodies["device "+field] = job("", "", "", "", field)
	}
	bodies["one of two groups"] = `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]},{"Name":7}]}}`
	bodies["one of two tasks"] = `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{"gpu":"1"}},{"Name":7}]}]}}`
	for name, body := range bodies {
		j, err := Read([]byte(body), Query{})
		if err == nil {
			_, err = j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{trainingTask}}}, Link{})
		}
		if err == nil {
			t.Errorf("%s passes", name)
		}
	}
	if j, err := Read([]byte(job("", "", "", "", "")), Query{}); err != nil {
		t.Error(err)
	} else if _, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{trainingTask}}}, Link{}); err != nil {
		t.Errorf("nothing is wrong, and %v", err)
	}
}

func TestTimeLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "1s": time.Second, "8760h": 8760 * time.Hour, "": 0} {
		j, err := Read([]byte(jobWith(`"Meta":{"gpu":"1","gpu_time_limit":"`+text+`"}`)), Query{})
		if err != nil || j.Asks[0].TimeLimit != want {
			t.Errorf("%q: %v, %v", text, j, err)
		}
	}
	for _, text := range []string{"two hours", "90", "999ms", "8761h", "-1h"} {
		_, err := Read([]byte(jobWith(`"Meta":{"gpu":"1","gpu_time_limit":"`+text+`"}`)), Query{})
		if want := `gpu_time_limit = "` + text + `" is not valid (how long an allocation runs at most, from 1s to 8760h`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	two := `{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"a","Meta":{"gpu":"1","gpu_time_limit":"1h"}},{"Name":"b","Meta":{"gpu":"1"}}]}]}}`
	if _, err := Read([]byte(two), Query{}); err == nil || !strings.Contains(err.Error(), "a group is placed as one") {
		t.Errorf("two limits in a group: %v", err)
	}
}

func TestGangMinimum(t *testing.T) {
	for meta, want := range map[string]string{
		`"gpu_gang_min":"1"`:                     "beside gpu_gang",
		`"gpu_gang_min":"1","gpu_gang":"true"`:   "",
		`"gpu_gang_min":"2","gpu_gang":"true"`:   "",
		`"gpu_gang_min":"3","gpu_gang":"true"`:   "to the group's count, 2",
		`"gpu_gang_min":"0","gpu_gang":"true"`:   "is not a number from 1",
		`"gpu_gang_min":"two","gpu_gang":"true"`: "is not a number from 1",
		`"gpu_gang":"yes"`:                       "true, false",
	} {
		j, err := Read([]byte(jobWith(`"Meta":{"gpu":"1",`+meta+`}`)), Query{})
		switch {
		case want == "" && (err != nil || !j.Asks[0].Gang || j.Asks[0].Together() != j.Asks[0].GangMin):
			t.Errorf("%s: %v", meta, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", meta, err, want)
		}
	}
}

// TestConstraintsOfEveryLevel: all that the user wrote binds, wherever it stands, and
// what an admission wrote there does not.
func TestConstraintsOfEveryLevel(t *testing.T) {
	c := func(name string) string {
		return `"Constraints":[{"LTarget":"${meta.` + name + `}","RTarget":"1","Operand":"="},null]`
	}
	j := mustRead(t, `{"Job":{"ID":"j",`+c("job")+`,"TaskGroups":[{"Name":"g",`+c("group")+`,"Tasks":[{"Name":"a",`+c("first")+`,"Meta":{"gpu":"1"}},{"Name":"b",`+c("second")+`}]}]}}`)
	want := []Constraint{{"${meta.job}", "1", "="}, {"${meta.group}", "1", "="}, {"${meta.first}", "1", "="}, {"${meta.second}", "1", "="}}
	if !slices.Equal(j.Asks[0].Constraints, want) {
		t.Errorf("got %v, want %v", j.Asks[0].Constraints, want)
	}
	d := Decision{Group: "g", Candidates: []string{"n1"}, Hold: &Hold{Kind: "quota", Sentence: "x"}, Tasks: []TaskDecision{{Task: "a", Devices: []Device{sliced(8)}}}}
	if again := mustRead(t, string(applied(t, j, d))); !slices.Equal(again.Asks[0].Constraints, want) {
		t.Errorf("after the admission %v, want %v", again.Asks[0].Constraints, want)
	}
}

// TestSharesAreReadBack in every form in which Nomad keeps a block; what is none
// promises nothing.
func TestSharesAreReadBack(t *testing.T) {
	whole := gpu.Share{MemoryMiB: 7168, GuaranteeMilli: 500, LimitMilli: 800}
	for config, want := range map[string]gpu.Share{
		`{"gpu":[{"memory":"7GiB","compute":500,"compute_limit":800}]}`: whole,
		`{"gpu":{"memory":"7GiB","compute":500,"compute_limit":800}}`:   whole,
		`{"gpu":[{"memory":"much","compute":500}]}`:                     {GuaranteeMilli: 500},
		`{"gpu":[]}`: {}, `{"gpu":7}`: {}, `{"gpu":{"compute":"x","compute_limit":800}}`: {}, `{"gpu":{"compute":500,"compute_limit":"x"}}`: {}, `{}`: {}, `null`: {}, `7`: {},
	} {
		one, err := readTask([]byte(`{"Name":"t","Config":`+config+`}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := one.share(); got != want {
			t.Errorf("%s reads as %+v, want %+v", config, got, want)
		}
	}
}

// The priority that an author gives a seat is known, and changes no key: an alloc that runs is
// not replaced for it by the service.
func TestThePriorityOfASeatIsRead(t *testing.T) {
	keys := map[string]bool{}
	for config, want := range map[string]int{
		`{"gpu":[{"priority":"70","memory":"7GiB"}]}`: 70, `{"gpu":{"priority":"below_normal"}}`: 25, `{"gpu":{"priority":"most"}}`: 0, `{}`: 0, `{"gpu":{"priority":60}}`: 60,
	} {
		j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"containerd","Config":`+config+`,"Resources":{"Devices":[{"Name":"nvidia/shared"}]}}]}]}}`)
		if got := j.Asks[0].Tasks[0].SeatPriority; got != want {
			t.Errorf("%s reads as %d, want %d", config, got, want)
		}
		keys[j.Asks[0].Key()] = true
	}
	if len(keys) != 1 {
		t.Errorf("%d keys", len(keys))
	}
}

// TestPreferredGroupsOfEveryBlock: they are kept by task and by the place of their block.
func TestPreferredGroupsOfEveryBlock(t *testing.T) {
	prefer := func(group string) string {
		return `{"Name":"nvidia/slice","Count":8,"Affinities":[{"LTarget":"${device.model}","RTarget":"nomad-gpu,` + group + `","Operand":"set_contains_any","Weight":100}]}`
	}
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{"gpu":"1"},"Resources":{"Devices":[`+
		prefer("A100/0")+`,{"Name":"intel/fpga"},{"Name":"nvidia/slice","Count":8},`+prefer("A100/1")+`]}},{"Name":"u","Resources":{"Devices":[`+prefer("T4/0")+`]}}]}]}}`)
	want := map[string][]string{"t": {"A100/0", "", "A100/1"}, "u": {"T4/0"}}
	if diff := cmp.Diff(want, j.Asks[0].Was.Groups); diff != "" {
		t.Errorf("preferred groups (-want +got):\n%s", diff)
	}
}

// TestTheRanksNetwork: a rank of the containerd driver comes onto the host's network
// where none was chosen for it.
func TestTheRanksNetwork(t *testing.T) {
	for name, tc := range map[string]struct{ driver, network, config, want string }{
		"none chosen":             {"containerd", `"Networks":[{"Mode":"host"}],`, ``, `"network_mode":"host"`},
		"group without one":       {"containerd", ``, ``, `"network_mode":"host"`},
		"chosen":                  {"containerd", `"Networks":[{"Mode":"host"}],`, `"network_mode":"task:x"`, `"network_mode":"task:x"`},
		"chosen in the other way": {"containerd", `"Networks":[{"Mode":"host"}],`, `"host_network":false`, `"host_network":false`},
		"CNI":                     {"containerd", `"Networks":[{"Mode":"cni/x"}],`, ``, ``},
		"another driver":          {"docker", `"Networks":[{"Mode":"host"}],`, ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Count":2,`+tc.network+`"Tasks":[{"Name":"t","Driver":"`+tc.driver+
				`","Config":{`+tc.config+`},"Meta":{"gpu":"8G","gpu_framework":"pytorch","gpu_distributed":"true"}}]}]}}`)
			out := string(applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{trainingTask}}))
			_, config, _ := strings.Cut(out, `"Config":{`)
			config, _, _ = strings.Cut(config, "}")
			if config != tc.want {
				t.Errorf("the task's config is {%s}, want {%s}", config, tc.want)
			}
		})
	}
}

func TestRefusalsNameTheirPlace(t *testing.T) {
	_, err := Read([]byte(jobWith(`"Meta":{"gpu":"1.5"}`)), Query{})
	if refusal := (*Refusal)(nil); !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Error(), `group "g", task "t": `) {
		t.Errorf("got %v", err)
	}
}

// A job whose UI block cannot be read is not registered without its link.
func TestALinkThatCannotBeAddedIsAnError(t *testing.T) {
	body := strings.Replace(jobWith(`"Meta":{"gpu":"1"}`), `{"Job":{`, `{"Job":{"UI":7,`, 1)
	j, err := Read([]byte(body), Query{})
	if err != nil {
		t.Fatal(err)
	}
	d := []Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}}}
	if out, err := j.Apply(d, Link{Label: "GPU placement", URL: "http://gpu.example"}); err == nil {
		t.Errorf("applied: %s", out)
	}
}

// The time after which Nomad ends an allocation is a time limit, and the shorter one holds.
func TestMaxRunDurationIsATimeLimit(t *testing.T) {
	for limits, want := range map[string]time.Duration{
		`"MaxRunDuration":3600000000000`:                                 time.Hour,
		`"MaxRunDuration":3600000000000,"Meta":{"gpu_time_limit":"90m"}`: time.Hour,
		`"MaxRunDuration":3600000000000,"Meta":{"gpu_time_limit":"30m"}`: 30 * time.Minute,
		`"MaxRunDuration":null,"Meta":{"gpu_time_limit":"30m"}`:          30 * time.Minute,
		`"MaxRunDuration":null`:                                          0,
	} {
		j, err := Read([]byte(`{"Job":{"ID":"a","TaskGroups":[{"Name":"g",`+limits+`,"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`), Query{})
		if err != nil || j.Asks[0].TimeLimit != want {
			t.Errorf("%s: %v, want %s", limits, err, want)
		}
	}
}

// A time limit is written where Nomad enforces it: in batch work on GPUs. Nomad refuses it in
// other jobs.
func TestTimeLimitsAreWrittenForNomad(t *testing.T) {
	for row, want := range map[string]string{
		`"Type":"batch"`: `"MaxRunDuration":1800000000000`, `"Type":"sysbatch"`: `"MaxRunDuration":1800000000000`,
		`"Type":"service"`: "", `"Type":"batch","Priority":1`: "", // the last on the CPU
	} {
		j, err := Read([]byte(`{"Job":{"ID":"a",`+row+`,"TaskGroups":[{"Name":"g","Meta":{"gpu_time_limit":"30m"},"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`), Query{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := j.Apply([]Decision{{Group: "g", OnCPU: strings.Contains(row, "Priority"), Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8)}}}}}, Link{})
		if err != nil || strings.Contains(string(out), "MaxRunDuration") != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %s, %v, want %q", row, out, err, want)
		}
	}
}
