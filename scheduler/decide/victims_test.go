package decide

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestVictims(t *testing.T) {
	const quick = "preemption {\n min_run_time = \"0s\"\n}\n"
	type tenant struct {
		job              string
		priority, slices int
		namespace        string
	}
	for name, row := range map[string]struct {
		config    string
		tenants   []tenant
		priority  int
		namespace string
		want      []string
	}{
		"the lowest priority goes, though a higher one would do": {quick, []tenant{{"low", 20, 5, ""}, {"middle", 30, 11, ""}}, 80, "", []string{"low"}},
		"the least that suffices":                                {quick, []tenant{{"x", 20, 1, ""}, {"y", 20, 10, ""}, {"z", 20, 5, ""}}, 80, "", []string{"z"}},
		"what is not needed is given back":                       {quick, []tenant{{"small", 10, 2, ""}, {"big", 20, 14, ""}}, 80, "", []string{"big"}},
		"never equals":                                           {quick, []tenant{{"x", 50, 16, ""}}, 50, "", nil},
		"never useless":                                          {quick, []tenant{{"low", 20, 2, ""}, {"high", 90, 14, ""}}, 80, "", nil},
		"never before the minimum run time":                      {"", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"never a protected queue":                                {quick + "queue \"q\" {\n protected = true\n namespaces = [\"p\"]\n}", []tenant{{"x", 20, 16, "p"}}, 80, "", nil},
		"not when it is switched off":                            {"preemption {\n enabled = false\n min_run_time = \"0s\"\n}", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"a queue takes its own back from equals": {
			quick + "queue \"o\" {\n gpus = 1\n namespaces = [\"o\"]\n}\nqueue \"l\" {\n gpus = 0\n namespaces = [\"l\"]\n}",
			[]tenant{{"x", 50, 16, "l"}}, 50, "o", []string{"x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, row.config, machine("a", 1))
			from := 0
			for _, v := range row.tenants {
				a := ask(v.job, "1G", 1)
				a.Priority = v.priority
				if v.namespace != "" {
					a.Namespace = v.namespace
				}
				b.register(a)
				b.run(a, "alloc-"+v.job, "a", 0, from, v.slices)
				from += v.slices
			}
			a := ask("waiting", "5G", 1)
			a.Priority = row.priority
			if row.namespace != "" {
				a.Namespace = row.namespace
			}
			b.decide(t, a)
			b.register(a)
			b.block(a, 1)
			b.clock.at = b.clock.at.Add(settled + time.Second)
			due := b.book.NextDue(nil, true)
			var got []string
			if due != nil && due.Evict != nil {
				for _, v := range due.Evict.Victims {
					got = append(got, v.Job.ID)
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("victims %v, want %v", got, row.want)
			}
			if p := b.book.pending(); (p[0].Note == "") != (row.want != nil || strings.Contains(row.config, "enabled = false")) {
				t.Errorf("it is told %q", p[0].Note)
			}
		})
	}
}

func TestRoomThatIsMadeIsNotGivenAway(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1))
	low := ask("low", "16G", 1)
	low.Priority = 20
	b.register(low)
	b.run(low, "alloc-low", "a", 0, 0, 16)
	high := ask("high", "8G", 1)
	high.Priority = 80
	b.decide(t, high)
	b.register(high)
	b.block(high, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil {
		t.Fatalf("due is %+v", due)
	}
	b.book.Promise(due.Evict.Promises[0])
	out, err := b.Revise(t.Context(), []admit.Ask{low}, Revision{Group: "g", Exclude: "id-a", For: "default/high"})
	if err != nil || !slices.Equal(out[0].Candidates, []string{noNode}) {
		t.Fatalf("the victim may come back to %v, %v", out, err)
	}
	b.end("alloc-low")
	if d := b.decide(t, ask("thief", "10G", 1)); len(d.Preferred) != 0 {
		t.Errorf("a newcomer was sent into the room: %+v", d)
	}
	b.run(high, "alloc-high", "a", 0, 0, 8)
	b.book.Apply([]nomad.Change{{Unblocked: &nomad.JobKey{Namespace: "default", ID: "high"}}}, 99)
	if due := b.book.NextDue(nil, true); due == nil || due.Job.ID != "low" || !slices.Equal(due.Revision.Include, []string{"id-a"}) {
		t.Errorf("the node is not taken back in: %+v", due)
	}
}

// The core may find the room on GPUs of another form than those that there were
// when the group came; its device blocks are then written for them.
func TestRoomMayBeMadeInAnotherForm(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", wholeMachine("a"))
	tenant := ask("tenant", "1", 1)
	b.register(tenant)
	b.hold(tenant, "alloc-whole", "a")
	a := ask("waiting", "1", 1)
	b.decide(t, a)
	b.register(a)
	b.block(a, 1)
	b.book.Apply([]nomad.Change{{Node: machine("b", 1)}}, b.index)
	low := ask("low", "16G", 1)
	low.Priority = 20
	b.register(low)
	b.run(low, "alloc-low", "b", 0, 0, 16)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || due.Revision.Prefer != "id-b" || due.Evict.Reclaim {
		t.Fatalf("due is %+v", due)
	}
	b.book.Promise(due.Evict.Promises[0])
	d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil || d == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	wantSlices(t, &d[0])
}

// All tasks of a group start on one node, so room is made for them on one.
func TestRoomForSeveralTasksIsMadeOnOneNode(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 2), machine("b", 2))
	for i, priority := range []int{90, 20, 30, 40} { // a/0, a/1, b/0, b/1
		v := ask("tenant", "16G", 1)
		v.JobID, v.Priority = v.JobID+string(rune('0'+i)), priority
		b.register(v)
		b.run(v, "alloc-"+v.JobID, []string{"a", "b"}[i/2], i%2, 0, 16)
	}
	a := ask("waiting", "16G", 1)
	a.Priority = 80
	a.Tasks = append(a.Tasks, a.Tasks[0])
	a.Tasks[1].Task = "u"
	b.decide(t, a)
	b.register(a)
	b.block(a, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || due.Revision.Prefer != "id-b" || len(due.Evict.Victims) != 2 {
		t.Fatalf("due is %+v", due)
	}
}

// The owner of a job that yields may not see what runs in other namespaces, and
// the owner of a victim may not see the others.
func TestNamesOfOtherNamespacesAreNotTold(t *testing.T) {
	for namespace, want := range map[string]string{"default": "job waiting with", "secret": "a job of another namespace with"} {
		b := newBench(t, "", machine("a", 1))
		tenant := ask("tenant", "4G", 1)
		b.register(tenant)
		b.run(tenant, "alloc", "a", 0, 0, 4)
		waiting := ask("waiting", "16G", 1)
		waiting.Namespace, waiting.Priority = namespace, 90
		b.decide(t, waiting)
		b.register(waiting)
		b.block(waiting, 1)
		d := b.decide(t, ask("yields", "8G", 1))
		if d.Hold == nil || d.Hold.Kind != view.WaitsForPriority || !strings.HasPrefix(d.Hold.Sentence, want) {
			t.Errorf("%s: got %+v", namespace, d.Hold)
		}
	}
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1))
	for i, namespace := range []string{"red", "blue"} {
		v := ask("victim-of-"+namespace, "8G", 1)
		v.Namespace, v.Priority = namespace, 20
		b.register(v)
		b.run(v, "alloc-"+namespace, "a", 0, 8*i, 8)
	}
	high := ask("high", "16G", 1)
	high.Priority = 80
	b.decide(t, high)
	b.register(high)
	b.block(high, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 2 {
		t.Fatalf("due is %+v", due)
	}
	for _, v := range due.Evict.Victims {
		if !strings.Contains(v.Text, v.Job.ID) || strings.Count(v.Text, "victim-of-") != 1 || !strings.Contains(v.Text, "job default/high") {
			t.Errorf("victim %s is told %q", v.Job, v.Text)
		}
	}
}
