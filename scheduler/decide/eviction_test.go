// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestVictims(t *testing.T) {
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
		"the lowest priority goes, though a higher one would do": {servicetest.Quick, []tenant{{"low", 20, 5, ""}, {"middle", 30, 11, ""}}, 80, "", []string{"low"}},
		"the least that suffices":                                {servicetest.Quick, []tenant{{"x", 20, 1, ""}, {"y", 20, 10, ""}, {"z", 20, 5, ""}}, 80, "", []string{"z"}},
		"what is not needed is given back":                       {servicetest.Quick, []tenant{{"small", 10, 2, ""}, {"big", 20, 14, ""}}, 80, "", []string{"big"}},
		"never equals":                                           {servicetest.Quick, []tenant{{"x", 50, 16, ""}}, 50, "", nil},
		"never useless":                                          {servicetest.Quick, []tenant{{"low", 20, 2, ""}, {"high", 90, 14, ""}}, 80, "", nil},
		"never before the minimum run time":                      {"", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"never a protected queue":                                {servicetest.Quick + "queue \"q\" {\n protected = true\n namespaces = [\"p\"]\n}", []tenant{{"x", 20, 16, "p"}}, 80, "", nil},
		"not above what its queue lets it be":                    {servicetest.Quick + "queue \"q\" {\n max_priority = 40\n namespaces = [\"default\", \"p\"]\n}", []tenant{{"middle", 60, 11, "m"}, {"low", 20, 5, "l"}}, 80, "", []string{"low"}},
		"not when it is switched off":                            {"preemption {\n enabled = false\n min_run_time = \"0s\"\n}", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"a queue takes its own back from equals": {
			servicetest.Quick + "queue \"o\" {\n gpus = 1\n namespaces = [\"o\"]\n}\nqueue \"l\" {\n gpus = 0\n namespaces = [\"l\"]\n}",
			[]tenant{{"x", 50, 16, "l"}}, 50, "o", []string{"x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, servicetest.Machine("a", 1))
			from := 0
			for _, v := range row.tenants {
				a := servicetest.Ask(v.job, "1G", 1)
				a.Priority = v.priority
				if v.namespace != "" {
					a.Namespace = v.namespace
				}
				b.Register(a)
				b.Run(a, "alloc-"+v.job, "a", 0, from, v.slices)
				from += v.slices
			}
			a := servicetest.Ask("waiting", "5G", 1)
			a.Priority = row.priority
			if row.namespace != "" {
				a.Namespace = row.namespace
			}
			b.Submit(t, a)
			b.Register(a)
			b.Block(a, 1)
			b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
			due := b.Next(nil, true)
			var got []string
			if due != nil && due.Evict != nil {
				for _, v := range due.Evict.Victims {
					got = append(got, v.Job.ID)
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("victims %v, want %v", got, row.want)
			}
			if p := b.Cluster(t).Pending; (p[0].Note == "") != (row.want != nil || strings.Contains(row.config, "enabled = false")) {
				t.Errorf("it is told %q", p[0].Note)
			}
		})
	}
}

func TestRoomThatIsMadeIsNotGivenAway(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 1))
	low := servicetest.Ask("low", "16G", 1)
	low.Priority = 20
	b.Register(low)
	b.Run(low, "alloc-low", "a", 0, 0, 16)
	high := servicetest.Ask("high", "8G", 1)
	high.Priority = 80
	b.Submit(t, high)
	b.Register(high)
	b.Block(high, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil {
		t.Fatalf("due is %+v", due)
	}
	b.Assume(due.Evict.Promises[0])
	out, err := b.Revise(t.Context(), []admit.Ask{low}, decide.Revision{Group: "g", Exclude: []string{"id-a"}, For: "default/high"})
	if err != nil || !slices.Equal(out[0].Candidates, []string{"none"}) {
		t.Fatalf("the victim may come back to %v, %v", out, err)
	}
	b.End("alloc-low")
	if d := b.Submit(t, servicetest.Ask("thief", "10G", 1)); len(d.Preferred) != 0 {
		t.Errorf("a newcomer was sent into the room: %+v", d)
	}
	b.Run(high, "alloc-high", "a", 0, 0, 8)
	b.State.Apply([]nomad.Change{{Unblocked: &nomad.JobKey{Namespace: "default", ID: "high"}}}, 99)
	if due := b.Next(nil, true); due == nil || due.Job.ID != "low" || !slices.Equal(due.Revision.Include, []string{"id-a"}) {
		t.Errorf("the node is not taken back in: %+v", due)
	}
}

// The core may find the room on GPUs of another form than those that there were
// when the group came; its device blocks are then written for them.
func TestRoomMayBeMadeInAnotherForm(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", wholeMachine("a"))
	tenant := servicetest.Ask("tenant", "1", 1)
	b.Register(tenant)
	hold(b, tenant, "alloc-whole", "a")
	a := servicetest.Ask("waiting", "1", 1)
	b.Submit(t, a)
	b.Register(a)
	b.Block(a, 1)
	b.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, b.Index)
	low := servicetest.Ask("low", "16G", 1)
	low.Priority = 20
	b.Register(low)
	b.Run(low, "alloc-low", "b", 0, 0, 16)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || due.Revision.Prefer != "id-b" || due.Evict.Reclaim {
		t.Fatalf("due is %+v", due)
	}
	b.Assume(due.Evict.Promises[0])
	d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil || d == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	wantSlices(t, &d[0])
}

// All tasks of a group start on one node, so room is made for them on one.
func TestRoomForSeveralTasksIsMadeOnOneNode(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	for i, priority := range []int{90, 20, 30, 40} { // a/0, a/1, b/0, b/1
		v := servicetest.Ask("tenant", "16G", 1)
		v.JobID, v.Priority = v.JobID+string(rune('0'+i)), priority
		b.Register(v)
		b.Run(v, "alloc-"+v.JobID, []string{"a", "b"}[i/2], i%2, 0, 16)
	}
	a := servicetest.Ask("waiting", "16G", 1)
	a.Priority = 80
	a.Tasks = append(a.Tasks, a.Tasks[0])
	a.Tasks[1].Task = "u"
	b.Submit(t, a)
	b.Register(a)
	b.Block(a, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || due.Revision.Prefer != "id-b" || len(due.Evict.Victims) != 2 {
		t.Fatalf("due is %+v", due)
	}
}

// The owner of a job that yields may not see what runs in other namespaces, and
// the owner of a victim may not see the others.
func TestNamesOfOtherNamespacesAreNotTold(t *testing.T) {
	for namespace, want := range map[string]string{"default": "job waiting with", "secret": "a job of another namespace with"} {
		b := servicetest.New(t, "", servicetest.Machine("a", 1))
		tenant := servicetest.Ask("tenant", "4G", 1)
		b.Register(tenant)
		b.Run(tenant, "alloc", "a", 0, 0, 4)
		waiting := servicetest.Ask("waiting", "16G", 1)
		waiting.Namespace, waiting.Priority = namespace, 90
		b.Submit(t, waiting)
		b.Register(waiting)
		b.Block(waiting, 1)
		d := b.Submit(t, servicetest.Ask("yields", "8G", 1))
		if d.Hold == nil || d.Hold.Kind != view.WaitsForPriority || !strings.HasPrefix(d.Hold.Sentence, want) {
			t.Errorf("%s: got %+v", namespace, d.Hold)
		}
	}
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 1))
	for i, namespace := range []string{"red", "blue"} {
		v := servicetest.Ask("victim-of-"+namespace, "8G", 1)
		v.Namespace, v.Priority = namespace, 20
		b.Register(v)
		b.Run(v, "alloc-"+namespace, "a", 0, 8*i, 8)
	}
	high := servicetest.Ask("high", "16G", 1)
	high.Priority = 80
	b.Submit(t, high)
	b.Register(high)
	b.Block(high, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 2 {
		t.Fatalf("due is %+v", due)
	}
	for _, v := range due.Evict.Victims {
		if !strings.Contains(v.Text, v.Job.ID) || strings.Count(v.Text, "victim-of-") != 1 || !strings.Contains(v.Text, "job default/high") {
			t.Errorf("victim %s is told %q", v.Job, v.Text)
		}
	}
}

// TestWhatIsSavedIsNotLost: of two that are alike the one goes that has less to lose,
// which is the older one once it told that its work is saved.
func TestWhatIsSavedIsNotLost(t *testing.T) {
	for name, row := range map[string]struct {
		saved map[string]time.Duration // before now
		want  string
	}{
		"nobody saved":                       {nil, "alloc-young"},
		"the old one saved":                  {map[string]time.Duration{"old": time.Second}, "alloc-old"},
		"both did, at one time":              {map[string]time.Duration{"old": time.Second, "young": time.Second}, ""},
		"longer ago than the young one runs": {map[string]time.Duration{"old": 50 * time.Minute}, "alloc-young"},
		"before it was started":              {map[string]time.Duration{"old": 5 * time.Hour}, "alloc-young"},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
			for i, id := range []string{"old", "young"} {
				b.Tenant(t, id, 20, "a", 0, i*8, 8)
				b.Pass(30 * time.Minute)
			}
			saved := map[nomad.JobKey]time.Time{}
			for id, ago := range row.saved {
				saved[nomad.JobKey{Namespace: "default", ID: id}] = b.Clock.At.Add(-ago)
			}
			b.State.Saved(saved)
			b.Waits(t, "waiting", "5G", 80)
			item := b.Next(nil, true)
			if item == nil || item.Evict == nil || len(item.Evict.Victims) != 1 {
				t.Fatalf("got %+v", item)
			}
			if got := item.Evict.Victims[0].AllocID; row.want != "" && got != row.want {
				t.Errorf("%s goes, want %s", got, row.want)
			}
			// What is not told any more does not count any more.
			b.State.Saved(nil)
			if item := b.Next(nil, true); item.Evict.Victims[0].AllocID != "alloc-young" {
				t.Errorf("then %+v", item.Evict.Victims)
			}
		})
	}
}

// Of equals the one goes that ends soonest. Where none does in half an hour, it goes without its
// shutdown_delay, and is told so.
func TestWhatStopsSoonGoesFirst(t *testing.T) {
	for _, row := range []struct {
		slow, quick time.Duration
		late        bool
	}{{720 * time.Hour, 720 * time.Hour, true}, {720 * time.Hour, 0, false}, {20 * time.Minute, 5 * time.Second, false}} {
		b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
		for i, id := range []string{"quick", "slow"} { // the younger is slow
			a := b.Tenant(t, id, 20, "a", 0, i*8, 8)
			registered(b, a, func(j *nomad.Job) {
				j.Groups[0].StopTime = map[string]time.Duration{"quick": row.quick, "slow": row.slow}[id]
			})
			b.Run(a, "alloc-"+id, "a", 0, i*8, 8)
			b.Pass(time.Minute)
		}
		b.Waits(t, "waiting", "5G", 80)
		item := b.Next(nil, true)
		if item == nil || item.Evict == nil || len(item.Evict.Victims) != 1 {
			t.Fatalf("got %+v", item)
		}
		v := item.Evict.Victims[0]
		if late := strings.Contains(v.Text, "no shutdown_delay"); (v.AllocID == "alloc-quick") == row.late || late != row.late {
			t.Errorf("%+v: %s goes: %s", row, v.AllocID, v.Text)
		}
	}
}

// A task tells itself that its work is saved, through its socket on the node: that counts
// for its alloc, also when later events have taken the place of what it said.
func TestWhatATaskSaysIsSavedIsNotLost(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	for i, id := range []string{"old", "young"} {
		b.Tenant(t, id, 20, "a", 0, i*8, 8)
		b.Pass(30 * time.Minute)
	}
	b.Waits(t, "waiting", "5G", 80)
	victim := func() string {
		t.Helper()
		item := b.Next(nil, true)
		if item == nil || item.Evict == nil || len(item.Evict.Victims) != 1 {
			t.Fatalf("got %+v", item)
		}
		return item.Evict.Victims[0].AllocID
	}
	if got := victim(); got != "alloc-young" {
		t.Fatalf("%s goes", got)
	}
	tell := func(saved map[string]time.Time) {
		a := b.Alloc("alloc-old")
		b.Index++
		a.Index, a.Saved = b.Index, saved
		b.State.Apply([]nomad.Change{{Alloc: &a}}, b.Index)
	}
	task := b.Alloc("alloc-old").Devices[0].Task
	tell(map[string]time.Time{"another": b.Clock.At})
	if got := victim(); got != "alloc-young" {
		t.Errorf("%s goes, though a task without a GPU has said so", got)
	}
	for _, saved := range []map[string]time.Time{{task: b.Clock.At.Add(-time.Second)}, nil} {
		tell(saved)
		if got := victim(); got != "alloc-old" {
			t.Errorf("%s goes after %v", got, saved)
		}
	}
}

// What is to end and does not, since its client or its GPU hangs, is waited for half an hour. Then
// other work makes room.
func TestWhatNeverStopsIsNotWaitedForForEver(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	b.Tenant(t, "hangs", 20, "a", 0, 0, 16)
	b.Tenant(t, "low", 30, "b", 0, 0, 16)
	b.Stop("alloc-hangs")
	b.Waits(t, "high", "1", 80)
	for _, after := range []time.Duration{0, 10 * time.Minute, 19 * time.Minute, 3 * time.Minute} {
		b.Pass(after)
		b.State.Heard()
		b.Expire()
		due, goes := b.Next(nil, true), ""
		if due != nil && due.Evict != nil {
			goes = due.Evict.Victims[0].AllocID
		}
		if want := map[bool]string{true: "alloc-low"}[after == 3*time.Minute]; goes != want {
			t.Fatalf("after %s more %q goes, want %q: %+v", after, goes, want, due)
		}
	}
}
