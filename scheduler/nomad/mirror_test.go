// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Only what is newer is a change, of each kind: a job may be told again at its index, since other
// fields than its own changed, and a blocked evaluation too, since it says what is missing now.
func TestWhatIsAChange(t *testing.T) {
	m := NewMirror(Hardware{})
	node := func(id string, index uint64) []Change {
		return m.node(NewNode(&api.Node{ID: id, ModifyIndex: index}, Hardware{}))
	}
	alloc := func(index uint64, status string) []Change {
		return m.alloc(&Alloc{ID: "a", Index: index, Status: status})
	}
	job := func(id string, index uint64) []Change { return m.job(&Job{Key: JobKey{"n", id}, Index: index}) }
	eval := func(index uint64, id, status string) []Change {
		return m.eval(&eventEval{ID: id, Namespace: "n", JobID: "j", Status: status, ModifyIndex: index})
	}
	for i, row := range []struct {
		what string
		got  []Change
		want string
	}{
		{"a node", node("x", 5), "node"}, {"as it was", node("x", 5), ""}, {"as it was before", node("x", 4), ""}, {"later", node("x", 6), "node"},
		{"another", node("y", 1), "node"}, {"one is gone", m.nodeGone("y"), "node gone"}, {"gone again", m.nodeGone("y"), ""}, {"and back", node("y", 1), "node"},
		{"one that was never there", m.nodeGone("z"), ""},
		{"an alloc", alloc(5, "running"), "alloc"}, {"as it was", alloc(5, "running"), ""}, {"before", alloc(4, "pending"), ""}, {"later", alloc(6, "running"), "alloc"},
		{"it ended before", alloc(5, "complete"), ""}, {"it ended", alloc(7, "complete"), "alloc"}, {"again", alloc(8, "complete"), ""}, {"it was not over", alloc(8, "running"), "alloc"},
		{"a job", job("j", 5), "job"}, {"told again", job("j", 5), "job"}, {"before", job("j", 4), ""}, {"later", job("j", 6), "job"},
		{"it is purged", m.jobGone(JobKey{"n", "j"}), "job gone"}, {"again", m.jobGone(JobKey{"n", "j"}), ""}, {"of another namespace", m.jobGone(JobKey{"m", "j"}), ""}, {"it is new", job("j", 1), "job"},
		{"what is not blocked", eval(4, "e", "complete"), ""}, {"it is blocked", eval(5, "e", "blocked"), "blocked"}, {"told again", eval(5, "e", "blocked"), "blocked"},
		{"before", eval(4, "e", "blocked"), ""}, {"it ended before", eval(4, "e", "complete"), ""}, {"another ends", eval(9, "f", "complete"), ""},
		{"it ends at once", eval(5, "e", "complete"), "unblocked"}, {"again", eval(6, "e", "complete"), ""},
	} {
		want := map[string]int{}
		if row.want != "" {
			want[row.want] = 1
		}
		if got := kinds(row.got); !maps.Equal(got, want) {
			t.Errorf("%d, %s: %v, want %v", i, row.what, got, want)
		}
	}
	if gone := m.nodeGone("x"); len(gone) != 1 || gone[0].NodeGone != "x" {
		t.Errorf("gone is %+v", gone)
	}
	eval(7, "e", "blocked")
	if over := eval(8, "e", "canceled"); len(over) != 1 || *over[0].Unblocked != (JobKey{"n", "j"}) {
		t.Errorf("unblocked is %+v", over)
	}
}

// Regression: a job that waited was forgotten. Nomad may have two blocked evaluations of a job for
// a moment, and give up the newer one as a duplicate of the older, which it had tried again since.
func TestOneOfTwoBlockedEvaluationsEnds(t *testing.T) {
	key := JobKey{"n", "j"}
	at := func(id, status string, index uint64) *eventEval {
		return &eventEval{ID: id, Namespace: "n", JobID: "j", Status: status, ModifyIndex: index, CreateTime: int64(index), FailedTGAllocs: map[string]*failedGroup{"g": nil}}
	}
	for name, row := range map[string]struct {
		evals []*eventEval
		left  string // the evaluation that says what is missing in the end
	}{
		"the newer one":                 {[]*eventEval{at("old", "blocked", 5), at("new", "blocked", 7), at("new", "canceled", 8)}, "old"},
		"the older one":                 {[]*eventEval{at("old", "blocked", 5), at("new", "blocked", 7), at("old", "canceled", 8)}, "new"},
		"the newer one, heard of first": {[]*eventEval{at("new", "blocked", 7), at("old", "blocked", 5), at("new", "canceled", 8)}, "old"},
		"both":                          {[]*eventEval{at("old", "blocked", 5), at("new", "blocked", 7), at("old", "canceled", 8), at("new", "complete", 9)}, ""},
		"both, the newer one first":     {[]*eventEval{at("old", "blocked", 5), at("new", "blocked", 7), at("new", "canceled", 8), at("old", "complete", 9)}, ""},
		"the last of three":             {[]*eventEval{at("old", "blocked", 5), at("new", "blocked", 7), at("last", "blocked", 8), at("last", "canceled", 9)}, "new"},
	} {
		m, told := NewMirror(Hardware{}), ""
		for _, e := range row.evals {
			for _, c := range m.eval(e) {
				if told = ""; c.Blocked != nil {
					told = c.Blocked.EvalID
				}
			}
		}
		if b := m.blocked[key]; told != row.left || (b == nil) != (row.left == "") || b != nil && (b.EvalID != row.left || !b.Since.Equal(time.Unix(0, int64(row.evals[0].ModifyIndex)))) {
			t.Errorf("%s ends: told of %q, and it is %+v, want %q", name, told, b, row.left)
		}
	}
}

// What a blocked evaluation says, from when on: another of the job does not begin the wait anew.
func TestWhatABlockedEvaluationSays(t *testing.T) {
	e := &eventEval{
		ID: "e", Namespace: "n", JobID: "j", CreateTime: 7e9, ModifyIndex: 5, QueuedAllocations: map[string]int{"queued": 4, "more": 2, "unknown": 6},
		FailedTGAllocs: map[string]*failedGroup{"alone": {}, "several": {CoalescedFailures: 2, NodesEvaluated: 1}, "queued": {CoalescedFailures: 1}, "more": {CoalescedFailures: 2}, "unknown": nil},
	}
	b := e.blocked(nil)
	if want := map[string]int{"alone": 1, "several": 3, "queued": 4, "more": 3, "unknown": 6}; !maps.Equal(b.Missing, want) {
		t.Errorf("missing are %v, want %v", b.Missing, want)
	}
	if b.Index != 5 || b.EvalID != "e" || b.Key != (JobKey{"n", "j"}) || !b.Since.Equal(time.Unix(7, 0)) {
		t.Errorf("got %+v", b)
	}
	const noNode = "no node is ready in the job's datacenters and node pool"
	if want := map[string]string{"alone": noNode, "several": "", "queued": noNode, "more": noNode}; !maps.Equal(b.Why, want) {
		t.Errorf("why: %q, want %q", b.Why, want)
	}
	if later := e.blocked(&Blocked{Since: time.Unix(2, 0)}); !later.Since.Equal(time.Unix(2, 0)) {
		t.Errorf("it waits since %s", later.Since)
	}
}

// Nomad's reasons are told by how many nodes each keeps, then by their words, and three of them.
func TestWhichReasonsAreTold(t *testing.T) {
	for want, f := range map[string]failedGroup{
		"":             {NodesEvaluated: 1},
		"a on 1 nodes": {ConstraintFiltered: map[string]int{"a": 1}},
		"b on 2 nodes, a on 1 nodes, c on 1 nodes":                {ConstraintFiltered: map[string]int{"a": 1, "b": 2, "c": 1, "d": 1}},
		"exhausted memory on 3 nodes":                             {DimensionExhausted: map[string]int{"memory": 3}},
		"exhausted cpu on 5 nodes, exhausted memory on 3 nodes":   {ConstraintFiltered: map[string]int{"exhausted cpu": 4}, DimensionExhausted: map[string]int{"memory": 3, "cpu": 1}},
		"no node is ready in the job's datacenters and node pool": {ConstraintFiltered: map[string]int{"nomad-gpu: waits for quota: q": 2}},
		"b on 2 nodes": {ConstraintFiltered: map[string]int{"nomad-gpu: waits for quota: q": 9, "b": 2}, NodesEvaluated: 11},
	} {
		if got := f.String(); got != want {
			t.Errorf("%+v: %q, want %q", f, got, want)
		}
	}
}

// A GPU is out of order where any of its instances is, with that one's reason; where that is a
// cordon, what runs goes on.
func TestTheHealthOfAGPU(t *testing.T) {
	const fault = "xid-79: it fell off the bus (since 2026-01-02 03:04:05 UTC); reset it"
	for name, row := range map[string]struct {
		texts             []string // of its instances, empty where they are healthy
		healthy, cordoned bool
		want              string
	}{
		"all are well":   {texts: []string{"", ""}, healthy: true},
		"a fault":        {texts: []string{fault, fault}, want: fault},
		"of the last":    {texts: []string{"", fault}, want: fault},
		"the first says": {texts: []string{"broken", fault}, want: "broken"},
		"a cordon":       {texts: []string{"", "cordoned: by hand"}, healthy: true, cordoned: true, want: "cordoned: by hand"},
		"of no reason":   {texts: []string{"cordoned: "}, want: "cordoned: "},
	} {
		g := &api.NodeDeviceResource{Vendor: "nvidia", Type: "shared", Name: "T4"}
		for i, text := range slices.Backward(row.texts) { // Nomad's order is another
			g.Instances = append(g.Instances, instances(text, []string{"G::0", "G::1"}[i])...)
		}
		d := Hardware{}.devices([]*api.NodeDeviceResource{g})[0]
		if d.view.Healthy != row.healthy || d.plan.Unhealthy == row.healthy || d.view.Cordoned != row.cordoned || d.plan.Cordoned != row.cordoned || d.view.Health != row.want {
			t.Errorf("%s: %+v", name, d.view)
		}
	}
}
