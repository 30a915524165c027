// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// jobWith is a job of one group with these fields of the task, in JSON.
func jobWith(task string) string {
	return `{"Job":{"ID":"train","TaskGroups":[{"Name":"g","Count":2,"Tasks":[{"Name":"t","Driver":"containerd",` + task + `}]}]}}`
}

func TestRead(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want []Ask
	}{
		"no GPU":          {jobWith(`"Resources":{"CPU":500}`), nil},
		"empty request":   {jobWith(`"Meta":{"gpu":""}`), nil},
		"other device":    {jobWith(`"Resources":{"Devices":[{"Name":"intel/fpga"}]}`), nil},
		"stopped":         {strings.Replace(jobWith(`"Meta":{"gpu":"1"}`), `"ID"`, `"Stop":true,"ID"`, 1), nil},
		"null everywhere": {`{"Job":{"ID":"train","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Resources":null,"Meta":null}],"Constraints":null}],"Constraints":null}}`, nil},
		"other letter case": {`{"job":{"id":"train","TASKGROUPS":[{"name":"g","tasks":[{"name":"t","driver":"docker","meta":{"gpu":"1"}}]}]}}`,
			[]Ask{{Count: 1, Tasks: []TaskAsk{{Task: "t", Driver: "docker", Request: gpu.Request{Kind: gpu.KindCount, Count: 1}}}}}},
		"meta of the task": {jobWith(`"Meta":{"gpu":"8G,0.5","gpu_limit":"0.8","gpu_policy":"PACK","gpu_sharing":"mps","gpu_queue":"ml","gpu_reservation":"r1"},"Resources":{"CPU":2000,"MemoryMB":4096}`),
			[]Ask{{Count: 2, CPUMHz: 2000, MemoryMiB: 4096, Policy: "PACK", Sharing: gpu.SharingMPS, Queue: "ml", Reservation: "r1",
				Tasks: []TaskAsk{{Task: "t", Driver: "containerd", Request: gpu.Request{Kind: gpu.KindMemory, MemoryMiB: 8192, Milli: 500}, LimitMilli: 800}}}}},
		"a limit means MPS": {jobWith(`"Meta":{"gpu":"0.5","gpu_limit":"1"}`),
			[]Ask{{Count: 2, Sharing: gpu.SharingMPS, Tasks: []TaskAsk{{Task: "t", Driver: "containerd", Request: gpu.Request{Kind: gpu.KindFraction, Milli: 500}, LimitMilli: 1000}}}}},
		"plain device": {jobWith(`"Resources":{"Devices":[{"Name":"intel/fpga","Count":1},{"Name":"nvidia/slice","Count":8,"Constraints":[{"LTarget":"${device.attr.type}","RTarget":"A100","Operand":"="}]}]}`),
			[]Ask{{Count: 2, Tasks: []TaskAsk{{Task: "t", Driver: "containerd", Devices: []DeviceAsk{{Index: 1, Name: "nvidia/slice", Count: 8,
				Constraints: []Constraint{{"${device.attr.type}", "A100", "="}}}}}}}}},
		"a limit that the device plugin reads": {strings.Replace(jobWith(`"Meta":{"gpu_limit":"0.8"},"Resources":{"Devices":[{"Name":"nvidia/slice","Count":8}]}`), "containerd", "docker", 1),
			[]Ask{{Count: 2, Tasks: []TaskAsk{{Task: "t", Driver: "docker", Devices: []DeviceAsk{{Index: 0, Name: "nvidia/slice", Count: 8}}}}}}},
		"inherited from the job": {strings.Replace(jobWith(`"Driver2":1`), `"ID"`, `"Meta":{"gpu":"0.5"},"ID"`, 1),
			[]Ask{{Count: 2, Tasks: []TaskAsk{{Task: "t", Driver: "containerd", Request: gpu.Request{Kind: gpu.KindFraction, Milli: 500}}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.want {
				tc.want[i] = withDefaults(tc.want[i])
			}
			j, err := Read([]byte(tc.body), Query{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, j.Asks); diff != "" {
				t.Errorf("asks (-want +got):\n%s", diff)
			}
		})
	}
}

func withDefaults(a Ask) Ask {
	a.Namespace, a.JobID, a.JobType, a.Group, a.Priority = "default", "train", "service", "g", 50
	a.NodePool, a.Datacenters = "default", []string{"*"}
	a.Drivers = []string{a.Tasks[0].Driver}
	if a.CPUMHz == 0 {
		a.CPUMHz, a.MemoryMiB = defaultCPUMHz, defaultMemoryMiB
	}
	return a
}

func TestReadRefusals(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"malformed request":   {jobWith(`"Meta":{"gpu":"1.5"}`), `group "g", task "t": gpu request "1.5", column 1`},
		"decimal unit":        {jobWith(`"Meta":{"gpu":"8GB"}`), `unit "GB" is decimal`},
		"request and device":  {jobWith(`"Meta":{"gpu":"1"},"Resources":{"Devices":[{"Name":"nvidia/gpu"}]}`), "both ask for GPUs"},
		"limit without":       {jobWith(`"Meta":{"gpu_limit":"0.5"}`), "has no effect without gpu"},
		"limit of whole GPU":  {jobWith(`"Meta":{"gpu":"1","gpu_limit":"0.5"}`), "a whole GPU has no limit"},
		"limit below":         {jobWith(`"Meta":{"gpu":"0.5","gpu_limit":"0.25"}`), "below the guarantee 0.5"},
		"limit by turns":      {jobWith(`"Meta":{"gpu":"0.5","gpu_limit":"0.8","gpu_sharing":"timeslice"}`), "cannot be held where gpu_sharing is timeslice"},
		"limit in memory":     {jobWith(`"Meta":{"gpu":"0.5","gpu_limit":"8G"}`), `gpu_limit: "8G" is not valid`},
		"limit beside device": {jobWith(`"Meta":{"gpu_limit":"0.5"},"Resources":{"Devices":[{"Name":"nvidia/slice"}]}`), "compute_limit"},
		"policy":              {jobWith(`"Meta":{"gpu":"1","gpu_policy":"pack"}`), "SPREAD, PACK, BALANCED"},
		"sharing":             {jobWith(`"Meta":{"gpu":"1","gpu_sharing":"mpss"}`), "mps, timeslice, hami, dmem, suspend, none"},
		"framework":           {jobWith(`"Meta":{"gpu":"1","gpu_framework":"jax"}`), "pytorch, tensorflow"},
		"unknown key":         {jobWith(`"Meta":{"gpu":"1","gpu_polcy":"PACK"}`), `unknown meta key "gpu_polcy"`},
		"no limit of docker":  {strings.Replace(jobWith(`"Meta":{"gpu_limit":"80%"},"Resources":{"Devices":[{"Name":"nvidia/slice"}]}`), "containerd", "docker", 1), `gpu_limit: "80%" is not valid`},
		"one beside a device": {jobWith(`"Meta":{"gpu_limits":"0.5"},"Resources":{"Devices":[{"Name":"nvidia/slice"}]}`), `unknown meta key "gpu_limits"`},
		"resources of a kind": {jobWith(`"Resources":[]`), `task "t"`},
		"a list of none":      {jobWith(`"Resources":{"Devices":{}}`), `task "t"`},
		"two heirs": {`{"Job":{"ID":"a","Meta":{"gpu":"1"},"TaskGroups":[{"Name":"g","Tasks":[{"Name":"a"},{"Name":"b"}]}]}}`,
			`group "g": 2 tasks would each inherit gpu = "1"`},
		"two policies": {`{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"a","Meta":{"gpu":"1","gpu_policy":"PACK"}},{"Name":"b","Meta":{"gpu":"1"}}]}]}}`,
			"a group is placed as one"},
		"a job given twice":   {`{"Job":{"ID":"a"},"JOB":{"ID":"b","Meta":{"gpu":"1"}}}`, `JSON field "JOB" is given twice`},
		"tasks given twice":   {`{"Job":{"TaskGroups":[{"Tasks":[],"tasks":[{"Meta":{"gpu":"1"}}]}]}}`, "given twice"},
		"long s":              {`{"Job":{"TaskGroups":[],"TaskGroup\u017f":[]}}`, "given twice"},
		"too many blocks":     {jobWith(`"Resources":{"Devices":[` + strings.Repeat(`{"Name":"gpu"},`, 256) + `{"Name":"gpu"}]}`), "at most 256"},
		"group of wrong type": {`{"Job":{"TaskGroups":[7]}}`, "cannot be read"},
		"no list of groups":   {`{"Job":{"TaskGroups":7}}`, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read([]byte(tc.body), Query{})
			refusal := (*Refusal)(nil)
			if !errors.As(err, &refusal) || refusal.Status != 400 || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want a 400 with %q", err, tc.want)
			}
		})
	}
}

// What users prefer and demand in the operands that an admission uses too is theirs: it is
// neither read as a decision nor taken out.
func TestConditionsWithoutAMarkAreTheUsers(t *testing.T) {
	const body = `{"Job":{"ID":"j","TaskGroups":[{"Name":"g",
		"Constraints":[null,{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"n1,n2"},{"LTarget":"${node.datacenter}","Operand":"set_contains_any","RTarget":"dc1"}],
		"Affinities":[null,{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"n3","Weight":50}],
		"Tasks":[{"Name":"t","Driver":"containerd","Resources":{"Devices":[{"Name":"nvidia/slice","Count":8,
			"Constraints":[{"LTarget":"${device.attr.type}","Operand":"set_contains_any","RTarget":"A100,H100"}],
			"Affinities":[{"LTarget":"${device.model}","Operand":"set_contains_any","RTarget":"T4/0","Weight":50}]}]}}]}]}}`
	j := mustRead(t, body)
	a := j.Asks[0]
	if a.Was != nil {
		t.Errorf("they read as what was decided before: %+v", a.Was)
	}
	queue := Constraint{"${device.attr.type}", "A100", anyOf}
	out := string(applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Bound: &queue}}}))
	for _, want := range []string{`"RTarget":"n1,n2"`, `"RTarget":"dc1"`, `"RTarget":"n3"`, `"RTarget":"A100,H100"`, `"RTarget":"T4/0"`} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in the job any more: %s", want, out)
		}
	}
}

func TestReadWithoutJob(t *testing.T) {
	for _, body := range []string{"", "nonsense", "[]", "{}", `{"Job":null}`, `{"Job":{}}`, `{"Job":`} {
		if _, err := Read([]byte(body), Query{}); !errors.Is(err, ErrNoJob) {
			t.Errorf("Read(%q): %v, want ErrNoJob", body, err)
		}
	}
}

// Nomad takes the namespace from the URL, then from the request, then from the job.
func TestReadNamespace(t *testing.T) {
	body := []byte(`{"Namespace":"body","Job":{"ID":"a","Namespace":"job"}}`)
	for query, want := range map[string]string{"url": "url", "": "body"} {
		if j, err := Read(body, Query{Namespace: query}); err != nil || j.Namespace != want {
			t.Errorf("query %q: namespace %q (%v), want %q", query, j.Namespace, err, want)
		}
	}
}

func TestReadLifecycle(t *testing.T) {
	body := `{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[
		{"Name":"t","Meta":{"gpu":"1"},"Resources":{"CPU":1000,"MemoryMB":1000}},
		{"Name":"pre","Lifecycle":{"Hook":"prestart","Sidecar":false},"Resources":{"CPU":3000,"MemoryMB":10}},
		{"Name":"side","Lifecycle":{"Hook":"prestart","Sidecar":true},"Resources":{"Cores":2,"MemoryMB":50}}]}]}}`
	j, err := Read([]byte(body), Query{})
	if err != nil {
		t.Fatal(err)
	}
	a := j.Asks[0]
	if a.CPUMHz != 3000 || a.Cores != 2 || a.MemoryMiB != 1050 {
		t.Errorf("host resources %d MHz, %d cores, %d MiB, want 3000, 2, 1050", a.CPUMHz, a.Cores, a.MemoryMiB)
	}
}

// What starts later is known.
func TestReadLater(t *testing.T) {
	for more, want := range map[string]bool{
		"": false, `,"Periodic":null,"ParameterizedJob":null`: false, `,"Periodic":{}`: true,
		`,"ParameterizedJob":{}`: true, `,"ParameterizedJob":{},"Periodic":{}`: true,
	} {
		j, err := Read([]byte(`{"Job":{"ID":"a"`+more+`,"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`), Query{})
		if err != nil {
			t.Fatal(err)
		}
		if a := j.Asks[0]; a.Later != want {
			t.Errorf("%s: later %v", more, a.Later)
		}
	}
}

func TestKey(t *testing.T) {
	read := func(body string) Ask {
		j, err := Read([]byte(body), Query{})
		if err != nil {
			t.Fatal(err)
		}
		return j.Asks[0]
	}
	a := read(jobWith(`"Meta":{"gpu":"8G"}`))
	for change, same := range map[string]bool{
		jobWith(`"Meta":{"gpu":"8G"},"Env":{"A":"b"}`):                                   true,
		strings.Replace(jobWith(`"Meta":{"gpu":"8G"}`), `"Count":2`, `"Count":5`, 1):     true,
		strings.Replace(jobWith(`"Meta":{"gpu":"8G"}`), `"ID"`, `"Priority":80,"ID"`, 1): true,
		jobWith(`"Meta":{"gpu":"9G"}`):                                                   false,
		jobWith(`"Meta":{"gpu":"8G","gpu_sharing":"mps"}`):                               false,
		jobWith(`"Meta":{"gpu":"8G","gpu_framework":"pytorch"}`):                         false,
		jobWith(`"Resources":{"Devices":[{"Name":"nvidia/slice","Count":8}]}`):           false,
	} {
		if got := read(change).Key() == a.Key(); got != same {
			t.Errorf("key of %s: same %v, want %v", change, got, same)
		}
	}
}

// A job is read in time in proportion to its size, whoever made it.
func TestReadManyFields(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"Job":{"ID":"a"`)
	for i := range 200_000 {
		fmt.Fprintf(&b, `,"f%d":1`, i)
	}
	b.WriteString(`,"TaskGroups":[{"Name":"g0","Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}`)
	for i := range 20_000 {
		fmt.Fprintf(&b, `,{"Name":"g%d"}`, i+1)
	}
	b.WriteString(`]}}`)
	j, err := Read([]byte(b.String()), Query{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Apply(decideAnyhow(j.Asks), Link{}); err != nil {
		t.Fatal(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(jobWith(`"Meta":{"gpu":"8G,0.5"}`)))
	f.Add([]byte(jobWith(`"Resources":{"Devices":[{"Name":"gpu","Count":2,"Affinities":[{"RTarget":"nomad-gpu,A/0","Operand":"set_contains_any"}]}]}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		j, err := Read(body, Query{})
		if err != nil || len(j.Asks) == 0 {
			return
		}
		decisions := decideAnyhow(j.Asks)
		out, err := j.Apply(decisions, Link{"GPU placement", "http://page/"})
		if err != nil {
			return
		}
		again, err := Read(out, Query{})
		if err != nil {
			t.Fatalf("the result cannot be read: %v\n%s", err, out)
		}
		if len(again.Asks) != len(j.Asks) {
			t.Fatalf("%d asks became %d\n%s", len(j.Asks), len(again.Asks), out)
		}
		twice, err := again.Apply(decisions, Link{"GPU placement", "http://page/"})
		if err != nil || string(twice) != string(out) {
			t.Fatalf("applied twice: %v\n%s\n%s", err, out, twice)
		}
	})
}

func decideAnyhow(asks []Ask) []Decision {
	var decisions []Decision
	for _, a := range asks {
		d := Decision{Group: a.Group, Preferred: []string{"n2", "n1"}, Candidates: []string{"n1", "n2", "n3"}}
		for _, task := range a.Tasks {
			d.Tasks = append(d.Tasks, TaskDecision{Task: task.Task, Devices: []Device{{Name: "nvidia/slice", Count: 3, Prefer: "A100/0"}}, Share: gpu.Share{GuaranteeMilli: 500}})
		}
		decisions = append(decisions, d)
	}
	return decisions
}

// TestWhatIdentifiesAJob: the namespace of the query goes before that of the request, and that
// before the job's; of regions, Nomad takes that of the request first. The rest are Nomad's
// defaults.
func TestWhatIdentifiesAJob(t *testing.T) {
	for name, c := range map[string]struct {
		body, namespace, region string
		q                       Query
		priority                int
	}{
		"of the job":      {`{"Job":{"ID":"a","Priority":70,"Namespace":"n","Region":"eu"}}`, "n", "eu", Query{}, 70},
		"of the request":  {`{"Namespace":"m","Region":"us","Job":{"ID":"a","Priority":1,"Namespace":"n","Region":"eu"}}`, "m", "us", Query{}, 1},
		"of the query":    {`{"Namespace":"m","Job":{"ID":"a","Priority":100,"Namespace":"n","Region":"eu"}}`, "q", "asia", Query{Namespace: "q", Region: "asia"}, 100},
		"of both":         {`{"Namespace":"m","Region":"us","Job":{"ID":"a","Priority":100,"Namespace":"n","Region":"eu"}}`, "q", "us", Query{Namespace: "q", Region: "asia"}, 100},
		"of nothing":      {`{"Job":{"ID":"a"}}`, "default", "", Query{}, 50},
		"a priority of 0": {`{"Job":{"ID":"a","Priority":0}}`, "default", "", Query{}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := Read([]byte(c.body), c.q)
			if err != nil {
				t.Fatal(err)
			}
			if j.Namespace != c.namespace || j.Region != c.region || j.Priority != c.priority {
				t.Errorf("namespace %q, region %q, priority %d", j.Namespace, j.Region, j.Priority)
			}
		})
	}
}
