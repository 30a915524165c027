// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// What an admission wrote is known by all of its target, its operand and its mark.
func TestWhatBearsAMark(t *testing.T) {
	const none, ours, bounds, binds, holds = "", "ours", "bounds", "binds", "holds"
	for _, row := range []struct {
		c    Constraint
		want string
	}{
		{Constraint{nodeTarget, "nomad-gpu,n", anyOf}, ours}, {Constraint{nodeTarget, "nomad-gpu", isNot}, ours},
		{Constraint{nodeTarget, "nomad-gpu,n", "="}, none}, {Constraint{nodeTarget, "nomad-gpux", anyOf}, none}, {Constraint{"${node.class}", "nomad-gpu", isNot}, none},
		{Constraint{"${node.class}", "nomad-gpu,n", anyOf}, none},
		{Constraint{DatacenterTarget, "nomad-gpu,dc1", anyOf}, bounds}, {Constraint{PoolTarget, "nomad-gpu,p", anyOf}, bounds},
		{Constraint{DatacenterTarget, "nomad-gpu,dc1", "="}, none}, {Constraint{DatacenterTarget, "dc1", anyOf}, none},
		{Constraint{groupTarget, "nomad-gpu,A100", anyOf}, binds}, {Constraint{"${device.attr.type}", "nomad-gpu,A100", anyOf}, binds},
		{Constraint{groupTarget, "nomad-gpu,A100", "="}, none}, {Constraint{groupTarget, "A100", anyOf}, none},
		{Constraint{holdPrefix + "quota: full", holdTarget, "="}, holds}, {Constraint{holdPrefix + "quota: full", "x", "="}, none}, {Constraint{"waits for quota", holdTarget, "="}, none},
	} {
		if row.c.ours() != (row.want != none) || row.c.bounds() != (row.want == bounds) || row.c.binds() != (row.want == binds) || row.c.holds() != (row.want == holds) {
			t.Errorf("%+v: want %q", row.c, row.want)
		}
	}
}

// The conditions of a queue on datacenters and pools get a mark, and the operator's own have none.
func TestWhichBoundsGetAMark(t *testing.T) {
	for _, row := range []struct {
		c      Constraint
		marked bool
	}{
		{Constraint{DatacenterTarget, "dc1", anyOf}, true}, {Constraint{PoolTarget, "p", anyOf}, true},
		{Constraint{DatacenterTarget, "dc1", "="}, false}, {Constraint{"${node.class}", "big", anyOf}, false},
	} {
		if got := bound(row.c); (got != row.c) != row.marked || row.marked && got.RTarget != "nomad-gpu,"+row.c.RTarget {
			t.Errorf("%+v becomes %+v", row.c, got)
		}
	}
}

// Only a number of canaries above none, which bears its name, is one.
func TestCanariesAmongNodes(t *testing.T) {
	for member, want := range map[string]int{"canary=2": 2, "canary=1": 1, "canary=0": 0, "canary=-1": 0, "canary=x": 0, "2": 0, "node": 0} {
		nodes, canaries := splitNumber([]string{"a", member}, canariesMember)
		if or(canaries, 0) != want || (canaries != nil) != (want > 0) || slices.Contains(nodes, member) != (want == 0) || nodes[0] != "a" {
			t.Errorf("%s: %v, %v", member, nodes, canaries)
		}
	}
}

// What an admission left is seen by any of its marks.
func TestAnyMarkShowsAnAdmission(t *testing.T) {
	for name, row := range map[string]struct {
		group string
		want  bool
	}{
		"none":              {`"Constraints":[null,{"LTarget":"${node.class}","Operand":"=","RTarget":"x"}],"Affinities":[null,{"LTarget":"${node.class}","Operand":"=","RTarget":"x"}]`, false},
		"a constraint":      {`"Constraints":[{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"nomad-gpu,n"}]`, true},
		"a node":            {`"Affinities":[{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"nomad-gpu,n"}]`, true},
		"of another target": {`"Affinities":[{"LTarget":"${node.class}","Operand":"set_contains_any","RTarget":"nomad-gpu,n"}]`, false},
	} {
		j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g",`+row.group+`,"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`)
		if got := j.Asks[0].Was; (got != nil) != row.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A bound is found wherever it stands in a block, and among whatever stands there.
func TestABoundIsFound(t *testing.T) {
	const bound, other = `{"LTarget":"${device.model}","Operand":"set_contains_any","RTarget":"nomad-gpu,A100"}`, `{"LTarget":"${device.attr.x}","Operand":"=","RTarget":"1"}`
	for block, want := range map[string]bool{
		`{"Constraints":[` + bound + `,` + other + `]}`: true, `{"Constraints":[null,` + other + `,` + bound + `]}`: true, `{"Constraints":[` + other + `]}`: false,
		`{"FirstAvailable":[{},{"Constraints":[` + bound + `]}]}`: true, `{"FirstAvailable":[{"Constraints":[` + bound + `]},{}]}`: true, `{"Constraints":7}`: false,
	} {
		if got := boundOf(json.RawMessage(block)); (got != nil) != want || want && got.RTarget != "A100" {
			t.Errorf("%s: %+v", block, got)
		}
	}
	affinities := ourAffinities(json.RawMessage(`{"Affinities":[null,` + other + `,{"LTarget":"${device.model}","Operand":"set_contains_any","RTarget":"nomad-gpu,A100/0","Weight":100}]}`))
	if len(affinities) != 1 || affinities[0].RTarget != "A100/0" {
		t.Errorf("affinities %+v", affinities)
	}
}

// The operator's own condition of a queue is written once, whatever else a group has.
func TestABoundIsWrittenOnce(t *testing.T) {
	const operators = `{"LTarget":"${node.class}","Operand":"=","RTarget":"gpu"}`
	for had, want := range map[string]int{`null`: 1, `{"LTarget":"${node.class}","Operand":"=","RTarget":"x"}`: 1, `null,` + operators: 1} {
		j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Constraints":[`+had+`],"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`)
		out := applied(t, j, Decision{Group: "g", Bounds: []Constraint{{LTarget: "${node.class}", Operand: "=", RTarget: "gpu"}}, Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8)}}}})
		if got := strings.Count(string(out), `"RTarget":"gpu"`); got != want {
			t.Errorf("%s: it stands there %d times: %s", had, got, out)
		}
	}
}

// The driver's gpu block is the service's where the request is in the meta, and of this driver alone.
func TestWhoseTheGPUBlockIs(t *testing.T) {
	const marks = `"Constraints":[{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"nomad-gpu,n"}]`
	for name, row := range map[string]struct {
		task string
		want int64
	}{
		"the service's":       {`"Driver":"containerd","Meta":{"gpu":"8G"}`, 7168},
		"the author's":        {`"Driver":"containerd","Resources":{"Devices":[{"Name":"nvidia/gpu"}]}`, 0},
		"of another driver's": {`"Driver":"docker","Meta":{"gpu":"8G"}`, 0},
	} {
		j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g",`+marks+`,"Tasks":[{"Name":"t",`+row.task+`,"Config":{"gpu":[{"memory":"7GiB"}]}}]}]}}`)
		if was := j.Asks[0].Was; was == nil || was.Tasks[0].Share.MemoryMiB != row.want {
			t.Errorf("%s: %+v", name, was)
		}
	}
}

// The numbers of a training's ranks are those of its minimum and its maximum, where it has both.
func TestHowManyRanks(t *testing.T) {
	pytorch := &framework.Options{Kind: framework.PyTorch, Distributed: true}
	for name, row := range map[string]struct {
		ask         Ask
		least, most int
	}{
		"elastic":          {Ask{GangMin: 2, RanksMost: 4, Tasks: []TaskAsk{{Framework: pytorch}}}, 2, 4},
		"from one on":      {Ask{GangMin: 1, RanksMost: 4, Tasks: []TaskAsk{{Framework: pytorch}}}, 1, 4},
		"of one number":    {Ask{GangMin: 4, RanksMost: 4, Tasks: []TaskAsk{{Framework: pytorch}}}, 0, 0},
		"without a least":  {Ask{RanksMost: 4, Tasks: []TaskAsk{{Framework: pytorch}}}, 0, 0},
		"another group":    {Ask{GangMin: 2, RanksMost: 4, Tasks: []TaskAsk{{}}}, 0, 0},
		"not distributed":  {Ask{GangMin: 2, RanksMost: 4, Tasks: []TaskAsk{{Framework: &framework.Options{}}}}, 0, 0},
		"the second of it": {Ask{GangMin: 2, RanksMost: 4, Tasks: []TaskAsk{{}, {Framework: pytorch}}}, 2, 4},
	} {
		if least, most := row.ask.rankBounds(); least != row.least || most != row.most {
			t.Errorf("%s: %d to %d", name, least, most)
		}
	}
	six := 6
	for name, row := range map[string]struct {
		min, count int
		told       string
		scaling    *int
		want       int
	}{
		"its count":                    {min: 2, count: 4, want: 4},
		"its scaling":                  {min: 2, count: 4, scaling: &six, want: 6},
		"told more":                    {min: 2, count: 3, told: "2:5", want: 5},
		"told as many":                 {min: 2, count: 5, told: "2:5", want: 5},
		"more than told":               {min: 2, count: 6, told: "2:5", want: 6},
		"told of another least":        {min: 3, count: 4, told: "2:5", want: 4},
		"told a number":                {min: 2, count: 3, told: "5", want: 3},
		"told before, and scaled":      {min: 2, count: 3, told: "2:5", scaling: &six, want: 5},
		"without a least":              {count: 4, scaling: &six, want: 0},
		"a least of one":               {min: 1, count: 4, want: 4},
		"told what cannot be read":     {min: 2, count: 3, told: "2:x", want: 3},
		"told the least, and no more.": {min: 2, count: 0, told: "2:", want: 0},
	} {
		a := Ask{GangMin: row.min, Count: row.count, Tasks: []TaskAsk{{Framework: pytorch}}}
		if row.told != "" {
			a.Was = &Earlier{Ranks: row.told}
		}
		var g group
		if row.scaling != nil {
			g.header.Scaling = &struct{ Min, Max *int }{Max: row.scaling}
		}
		if got := g.ranksMost(&a); got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
		a.Tasks = nil
		if got := g.ranksMost(&a); got != 0 {
			t.Errorf("%s, without ranks: %d", name, got)
		}
	}
}

// What ranks were told is a number or a range; whatever else it says, it says nothing.
func TestWhatRanksWereTold(t *testing.T) {
	for told, want := range map[string]framework.Group{
		"4": {Count: 4}, "2:5": {Count: 3, Least: 2, Most: 5}, "2:": {Count: 3}, "2:x": {Count: 3}, "": {Count: 3}, "x": {Count: 3},
	} {
		if got := toldStanding(framework.Group{Count: 3, Least: 7, Most: 9}, told); got != want {
			t.Errorf("%q: %+v", told, got)
		}
	}
	training := []TaskAsk{{Framework: &framework.Options{Kind: framework.PyTorch, Distributed: true}}}
	for _, row := range []struct {
		tasks      []TaskAsk
		told, want string
	}{{training, "4", "4"}, {training, "", "4"}, {training, "3", "3 in place of 4"}, {nil, "3", ""}, {nil, "", ""}} {
		if got := (&Ask{Count: 4, Tasks: row.tasks, Was: &Earlier{Ranks: row.told}}).toldRanks(); got != row.want {
			t.Errorf("told %q: %q, want %q", row.told, got, row.want)
		}
	}
	j := mustRead(t, strings.Replace(training2, "%", `"GPU_RANKS":"9"`, 1))
	if got := j.groups[0].readRanks(&j.Asks[0]); got != "4" {
		t.Errorf("of two tasks: %q", got)
	}
}

// training2 is a group with a task beside its ranks, which has an environment of its own.
const training2 = `{"Job":{"ID":"j","Type":"batch","TaskGroups":[{"Name":"g","Count":4,"Tasks":[{"Name":"s","Env":{%},"Meta":{"gpu":"1"}},{"Name":"t","Env":{"GPU_RANKS":"4"},"Meta":{"gpu":"1","gpu_framework":"pytorch","gpu_distributed":"true"}}]}]}}`

// A name is one of a GPU by itself, or by what the operator calls them.
func TestNamesOfGPUs(t *testing.T) {
	for _, row := range []struct {
		name, operators string
		want            bool
	}{
		{"gpu", "", true}, {"nvidia/gpu", "", true}, {"nvidia/slice/A100", "", true}, {"fpga", "", false}, {"acme/gpu", "", false},
		{"fpga", "card", false}, {"card", "card", true}, {"acme/card", "card", true}, {"acme/card/x", "card", true}, {"card/x", "card", true}, {"acme/fpga", "card", false},
		{"acme/card", "acme/card", true}, {"acme/card/x", "acme/card", true}, {"other/card", "acme/card", false}, {"card", "acme/card", false},
	} {
		var operators []string
		if row.operators != "" {
			operators = []string{row.operators}
		}
		if got := isGPU(row.name, operators); got != row.want {
			t.Errorf("%s where the operator says %q: %v", row.name, row.operators, got)
		}
	}
}

// A group needs of the host what runs at once at most.
func TestWhatAGroupNeedsOfTheHost(t *testing.T) {
	task := func(lifecycle string, cpu int) string {
		if lifecycle != "" {
			lifecycle = `"Lifecycle":{` + lifecycle + `},`
		}
		text, _ := json.Marshal(cpu)
		return `{"Name":"t","Driver":"docker",` + lifecycle + `"Resources":{"CPU":` + string(text) + `,"MemoryMB":10}}`
	}
	const before, beside, after = `"Hook":"prestart"`, `"Hook":"prestart","Sidecar":true`, `"Hook":"poststop"`
	for name, row := range map[string]struct {
		tasks []string
		cpu   int64
	}{
		"two at once":        {[]string{task("", 100), task("", 200)}, 300},
		"much before it":     {[]string{task(before, 500), task("", 200)}, 500},
		"much after it":      {[]string{task("", 200), task(after, 500)}, 500},
		"beside all of it":   {[]string{task(beside, 50), task(before, 500), task("", 200), task(after, 300)}, 550},
		"little before it":   {[]string{task(before, 50), task("", 200), task(after, 50)}, 200},
		"two of each at one": {[]string{task(before, 50), task(before, 60), task(after, 70), task(after, 80)}, 150},
	} {
		g, err := readGroup([]byte(`{"Name":"g","Tasks":[`+strings.Join(row.tasks, ",")+`]}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if cpu, _, memory := g.hostResources(); cpu != row.cpu || memory == 0 {
			t.Errorf("%s: %d MHz, %d MiB", name, cpu, memory)
		}
	}
}

// A parameterized job with GPUs starts what was decided about at its dispatch, and nothing else.
func TestParameterizedJobsThatStartMore(t *testing.T) {
	job := func(more, meta string) *Job {
		return mustRead(t, `{"Job":{"ID":"j"`+more+`,"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{`+meta+`}}]}]}}`)
	}
	const parameterized, periodic, sysbatch, gpus = `,"ParameterizedJob":{}`, `,"Periodic":{}`, `,"Type":"sysbatch"`, `"gpu":"1"`
	for _, row := range []struct {
		job  *Job
		says []string
	}{
		{job(parameterized+periodic, gpus), []string{"that is periodic", "by the clock"}}, {job(parameterized+sysbatch, gpus), []string{"of type sysbatch", "on nodes that join"}},
		{job(parameterized, gpus), nil}, {job(periodic, gpus), nil}, {job(sysbatch, gpus), nil}, {job(parameterized+periodic, ""), nil},
	} {
		err := row.job.CheckChildren()
		var refusal *Refusal
		if errors.As(err, &refusal) != (row.says != nil) || refusal != nil && refusal.Status != unprocessable {
			t.Errorf("%+v: %v", row.job, err)
		}
		for _, text := range row.says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%v says nothing of %q", err, text)
			}
		}
	}
	for _, key := range keys {
		if err := CheckDispatch(map[string]string{"own": "x", key: "y"}); err == nil || !strings.Contains(err.Error(), "meta "+key) {
			t.Errorf("a dispatch with %s: %v", key, err)
		}
	}
	if err := CheckDispatch(map[string]string{"own": "x"}); err != nil {
		t.Error(err)
	}
}

// What the tasks of a group say about its gang and its limit is one thing, and may be the least.
func TestWhatTasksSayOfTheirGroup(t *testing.T) {
	group := func(first, second string) error {
		_, err := Read([]byte(`{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Count":4,"Tasks":[{"Name":"s","Meta":{`+first+`}},{"Name":"t","Meta":{`+second+`}}]}]}}`), Query{})
		return err
	}
	const one, gang = `"gpu":"0.5"`, `"gpu":"0.5","gpu_gang":"true"`
	for _, row := range []struct {
		first, second, says string
	}{
		{one, one, ""}, {gang, gang, ""}, {gang, one, "differ from an earlier task's"}, {one, gang, "differ from an earlier task's"},
		{gang + `,"gpu_gang_min":"2"`, gang + `,"gpu_gang_min":"3"`, "differ from an earlier task's"}, {gang + `,"gpu_gang_min":"2"`, gang + `,"gpu_gang_min":"2"`, ""},
		{one + `,"gpu_limit":"0.5"`, one, ""}, {one + `,"gpu_limit":"0.499"`, one, "below the guarantee"},
	} {
		if err := group(row.first, row.second); (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s beside %s: %v, want %q", row.first, row.second, err, row.says)
		}
	}
	for _, row := range []struct{ min, count, want int }{{0, 4, 4}, {1, 4, 1}, {3, 4, 3}, {5, 4, 4}} {
		if got := (&Ask{Gang: true, GangMin: row.min, Count: row.count}).Together(); got != row.want {
			t.Errorf("%+v: %d", row, got)
		}
	}
}

// A decision that says less than was asked for is another one, whatever it leaves out.
func TestAFingerprintOfLess(t *testing.T) {
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"s","Meta":{"gpu":"1"}},{"Name":"t","Meta":{"gpu":"1"}}]}]}}`)
	a := &j.Asks[0]
	tasks := []TaskDecision{{Task: "s", Devices: []Device{sliced(8)}}, {Task: "t", Devices: []Device{sliced(8)}}}
	seen := map[string]int{}
	for n := range 3 {
		text := a.Fingerprint(&Decision{Group: "g", Tasks: tasks[:n]})
		if other, known := seen[text]; known || text == "" {
			t.Errorf("%d decided tasks look like %d: %q", n, other, text)
		}
		seen[text] = n
	}
}

// What is preferred is the first of the longest sets.
func TestTheLongestSetIsPreferred(t *testing.T) {
	for want, sets := range map[string][]string{"a b": {"a", "a,b"}, "c": {"c", "d"}, "e f": {"e,f", "g"}} {
		var affinities []string
		for _, set := range sets {
			affinities = append(affinities, `{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"nomad-gpu,`+set+`"}`)
		}
		j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Affinities":[`+strings.Join(affinities, ",")+`],"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}}`)
		if got := strings.Join(j.Asks[0].Was.Preferred, " "); got != want {
			t.Errorf("%v: %s", sets, got)
		}
	}
}

// What the author of a device block prefers is read, without what an admission wrote there.
func TestAffinitiesOfABlock(t *testing.T) {
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Resources":{"Devices":[{"Name":"nvidia/gpu","Affinities":[{"LTarget":"${device.attr.x}","Operand":"=","RTarget":"1","Weight":7},null,`+
		`{"LTarget":"${device.model}","Operand":"set_contains_any","RTarget":"nomad-gpu,A100/0","Weight":100},{"LTarget":"${device.attr.y}","Operand":"=","RTarget":"2"}]}]}}]}]}}`)
	want := []Affinity{{LTarget: "${device.attr.x}", Operand: "=", RTarget: "1", Weight: 7}, {LTarget: "${device.attr.y}", Operand: "=", RTarget: "2", Weight: 50}}
	if got := j.Asks[0].Tasks[0].Devices[0].Affinities; !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}

// The driver's gpu block says what there is to say: an earlier one goes where there is nothing.
func TestWhatTheDriverIsTold(t *testing.T) {
	for priority, want := range map[int]any{0: nil, 1: "1", 5: "5"} {
		if got := driverBlock(&TaskDecision{SeatPriority: priority}).Priority; got != want {
			t.Errorf("a priority of %d is told as %v", priority, got)
		}
	}
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Constraints":[{"LTarget":"${node.unique.id}","Operand":"!=","RTarget":"nomad-gpu"}],"Tasks":[{"Name":"t","Driver":"containerd","Meta":{"gpu":"8G"},"Config":{"image":"i","gpu":[{"memory":"7GiB"}]}}]}]}}`)
	if out := applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8)}}}}); !strings.Contains(string(out), `"Config":{"image":"i"}`) {
		t.Errorf("left is %s", out)
	}
}

// A runtime without GPUs does without them.
func TestRuntimesThatNeedNoGPU(t *testing.T) {
	for runtime, refused := range map[string]bool{"runc": false, "nvidia": true, "nvidia-legacy": true} {
		_, err := Read([]byte(falling("", `,"gpu":"8G"`, `,"Config":{"runtime":"`+runtime+`"}`)), Query{})
		if (err != nil) != refused {
			t.Errorf("%s: %v", runtime, err)
		}
	}
	var refusal *Refusal
	if err := Forbidden("queue %q", "q"); !errors.As(err, &refusal) || refusal.Status != forbidden || refusal.Text != `queue "q"` {
		t.Errorf("what a queue forbids is %v", err)
	}
}

// A job with GPUs under a name that is too long to be asked for could neither be held nor evicted.
func TestNamesAreBounded(t *testing.T) {
	for name, row := range map[string]struct {
		id, group int
		gpus      bool
		says      string
	}{
		"as long as may be":     {LongestName, LongestName, true, ""},
		"too long an ID":        {LongestName + 1, 1, true, "the job's ID"},
		"too long a group":      {1, LongestName + 1, true, "the name of a group"},
		"a job without GPUs":    {LongestName + 1, LongestName + 1, false, ""},
		"both, far beyond that": {1 << 20, 1 << 20, true, "has 1048576 bytes"},
	} {
		meta := ""
		if row.gpus {
			meta = `"gpu":"1"`
		}
		j := mustRead(t, `{"Job":{"ID":"`+strings.Repeat("j", row.id)+`","TaskGroups":[{"Name":"`+strings.Repeat("g", row.group)+`","Tasks":[{"Name":"t","Meta":{`+meta+`}}]}]}}`)
		err := j.CheckNames()
		if (err != nil) != (row.says != "") || err != nil && (!strings.Contains(err.Error(), row.says) || len(err.Error()) > 200) {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}
