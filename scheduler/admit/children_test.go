// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const dispatchable = `{"Job":{"ID":"p","Type":"batch","ParameterizedJob":{},"TaskGroups":[
	{"Name":"g","Count":2,"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"8G"}}]},
	{"Name":"cpu","Count":3,"Tasks":[{"Name":"t","Driver":"docker"}]}]}}`

// born is a job as it is registered with children, and a child of it with other counts.
func born(t *testing.T) (parent []byte, child func(g, hold int) *Job) {
	t.Helper()
	j := mustRead(t, dispatchable)
	parent, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/slice", Count: 8}}}}}}, Link{})
	if err != nil {
		t.Fatal(err)
	}
	return parent, func(g, hold int) *Job {
		text := strings.Replace(string(parent), `"Count":0`, fmt.Sprintf(`"Count":%d`, g), 1)
		text = strings.Replace(text, `"Name":"nomad-gpu","Count":1`, fmt.Sprintf(`"Name":"nomad-gpu","Count":%d`, hold), 1)
		text = strings.Replace(text, `"ID":"p"`, `"ID":"p/1","ParentID":"p","Dispatched":true`, 1)
		c, err := Read([]byte(text), Query{Registered: true})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// A job with children is registered with none of its GPU groups' allocs, and read as its author wrote it:
// also when he submits what Nomad shows him, and with a count that he changes there.
func TestAJobWithChildrenIsReadAsItWasWritten(t *testing.T) {
	parent, _ := born(t)
	var have struct {
		Job struct {
			TaskGroups []struct {
				Name        string
				Count       int
				Constraints []Constraint
			}
		}
	}
	if err := json.Unmarshal(parent, &have); err != nil {
		t.Fatal(err)
	}
	var counts []string
	for _, g := range have.Job.TaskGroups {
		counts = append(counts, fmt.Sprint(g.Name, g.Count))
		for _, c := range g.Constraints {
			if strings.Contains(c.LTarget, "unique") {
				t.Errorf("group %s has a constraint on %s", g.Name, c.LTarget)
			}
		}
	}
	if got := strings.Join(counts, " "); got != "g0 cpu3 nomad-gpu1" {
		t.Errorf("it is registered with %s", got)
	}
	again := mustRead(t, string(parent))
	if a := again.Asks[0]; a.Count != 2 || !a.Later || a.Child || !again.HoldsChildren() || a.Registered() != a.Fingerprint(&Decision{Tasks: a.Was.Tasks}) {
		t.Errorf("it is read as %+v", a)
	}
	text, err := again.Apply([]Decision{again.Asks[0].Was.Decision("g")}, Link{})
	if err != nil || string(text) != string(parent) {
		t.Errorf("submitted again it is\n%s, %v, and was\n%s", text, err, parent)
	}
	more := mustRead(t, strings.Replace(string(parent), `"Count":0`, `"Count":5`, 1))
	if text, err := more.Apply([]Decision{more.Asks[0].Was.Decision("g")}, Link{}); err != nil || !strings.Contains(string(text), `{\"g\":5}`) || !strings.Contains(string(text), `"Count":0`) {
		t.Errorf("with another count it is %s, %v", text, err)
	}
	for _, spoiled := range []string{
		strings.Replace(string(parent), `"nomad-gpu: waits for`, `"else: waits for`, 1),
		strings.Replace(string(parent), `{\"g\":2}`, `two`, 1),
		strings.Replace(dispatchable, `"cpu"`, `"nomad-gpu"`, 1),
	} {
		if _, err := Read([]byte(spoiled), Query{}); err == nil || !strings.Contains(err.Error(), "group nomad-gpu: ") {
			t.Errorf("%s: %v", spoiled, err)
		}
	}
}

// A child is let go and held by counts, and something of it waits or runs at any time. What is let go in
// part is neither held nor let go.
func TestAChildIsHeldByItsCounts(t *testing.T) {
	_, child := born(t)
	hold := &Hold{Kind: "quota", Sentence: "x"}
	for _, row := range []struct {
		g, hold    int
		as         *Hold // what is decided
		steps      string
		registered bool // as is decided
	}{
		{0, 1, hold, "[]", true}, {0, 1, nil, "[{g 2} {nomad-gpu 0}]", false},
		{2, 1, hold, "[{g 0}]", false}, {2, 1, nil, "[{nomad-gpu 0}]", false},
		{2, 0, hold, "[{nomad-gpu 1} {g 0}]", false}, {2, 0, nil, "[]", true},
	} {
		c := child(row.g, row.hold)
		a := c.Asks[0]
		if a.Count != 2 || a.Later || !a.Child || !a.Gang || c.HoldsChildren() {
			t.Fatalf("it is read as %+v", a)
		}
		d := a.Was.Decision("g")
		d.Hold = row.as
		steps, ok := c.Scalings([]Decision{d})
		if got := fmt.Sprint(steps); !ok || got != row.steps && !(len(steps) == 0 && row.steps == "[]") {
			t.Errorf("%d and %d, held %v: %s, want %s", row.g, row.hold, row.as != nil, got, row.steps)
		}
		if (a.Registered() == a.Fingerprint(&d)) != row.registered {
			t.Errorf("%d and %d, held %v: as decided is %v", row.g, row.hold, row.as != nil, !row.registered)
		}
	}
	parent, _ := born(t)
	if _, ok := mustRead(t, string(parent)).Scalings(nil); ok {
		t.Error("a parent is held by its counts")
	}
	// What anyone writes into a submission makes no child of it.
	forged := strings.Replace(string(parent), `"ID":"p"`, `"ID":"q","ParentID":"p","Dispatched":true`, 1)
	if slices.ContainsFunc(mustRead(t, forged).Asks, func(a Ask) bool { return a.Child }) {
		t.Error("a submission is taken for a child")
	}
}

// Nomad would refuse no allocs of a group that is to have some at least.
func TestALeastCountOfChildrenIsRefused(t *testing.T) {
	for least, refused := range map[int]bool{0: false, 1: true} {
		j := mustRead(t, strings.Replace(dispatchable, `"Count":2`, fmt.Sprintf(`"Count":2,"Scaling":{"Min":%d,"Max":3}`, least), 1))
		if err := j.CheckChildren(); (err != nil) != refused {
			t.Errorf("min = %d: %v", least, err)
		}
	}
}
