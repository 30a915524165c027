// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// joins shows a node that joins.
func joins(s *servicetest.Service, n *nomad.Node) {
	s.Index++
	n.Index = s.Index
	s.State.Apply([]nomad.Change{{Node: n}}, s.Index)
}

// What no node can hold is refused, and waits where a node that could is expected: in a pool
// that is named and has no GPU yet, or of a model that the operator expects.
func TestWhatIsExpectedIsWaitedFor(t *testing.T) {
	const pool, model = "node pool %s has no node with GPUs yet", "no node with GPUs of model %s has joined yet"
	for name, row := range map[string]struct {
		change func(a *admit.Ask)
		ask    string
		waits  string // empty: it is refused
		blocks string
	}{
		"a pool that is scaled from zero":     {func(a *admit.Ask) { a.NodePool = "burst" }, "1", fmt.Sprintf(pool, "burst"), "nvidia/gpu 1"},
		"memory of one":                       {func(a *admit.Ask) { a.NodePool = "burst" }, "8G", fmt.Sprintf(pool, "burst"), "nvidia/slice 1"},
		"two of another vendor":               {func(a *admit.Ask) { a.NodePool = "burst" }, "2(amd)", fmt.Sprintf(pool, "burst"), "amd/gpu 2"},
		"a part of another vendor's":          {func(a *admit.Ask) { a.NodePool = "burst" }, "8G(amd)", fmt.Sprintf(pool, "burst"), "amd/slice 1"},
		"the author's own blocks":             {func(a *admit.Ask) { *a = blocks("job", "nvidia/gpu", 1); a.NodePool = "burst" }, "", fmt.Sprintf(pool, "burst"), ""},
		"a pool that has GPUs, too few":       {func(a *admit.Ask) { a.NodePool = "other" }, "4", "", ""},
		"the pool of those that name none":    {func(*admit.Ask) {}, "4", "", ""},
		"every pool":                          {func(a *admit.Ask) { a.NodePool = "all" }, "4", "", ""},
		"an expected model":                   {func(*admit.Ask) {}, "1(B200)", fmt.Sprintf(model, "B200"), "nvidia/gpu 1"},
		"in whatever case it is written":      {func(*admit.Ask) {}, "1(b200)", fmt.Sprintf(model, "b200"), "nvidia/gpu 1"},
		"of several models":                   {func(*admit.Ask) {}, "1(H100|B200)", fmt.Sprintf(model, "B200"), "nvidia/gpu 1"},
		"a model that nobody expects":         {func(*admit.Ask) {}, "1(H100)", "", ""},
		"an expected one that there is":       {func(*admit.Ask) {}, "4(T4)", "", ""},
		"of a second task":                    {func(a *admit.Ask) { second(a, "1(B200)") }, "1", fmt.Sprintf(model, "B200"), "nvidia/gpu 1; nvidia/gpu 1"},
		"what Nomad starts later":             {func(a *admit.Ask) { a.Later = true }, "1(B200)", "", ""},
		"a job that goes to all nodes":        {func(a *admit.Ask) { a.JobType = "system" }, "1(B200)", "", ""},
		"what is over its quota, not awaited": {func(a *admit.Ask) { a.NodePool, a.Reservation = "other", "r-none" }, "1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			other := servicetest.Machine("b", 1)
			other.Plan.Pool = "other"
			s := servicetest.New(t, "placement {\n expected_models = [\"B200\", \"T4\"]\n}\nqueue \"q\" {\n datacenters = [\"dc1\"]\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 1), other)
			a := servicetest.Ask("job", "1", 1)
			if row.ask != "" {
				a = servicetest.Ask("job", row.ask, 1)
			}
			row.change(&a)
			d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
			var refusal *admit.Refusal
			if row.waits == "" {
				if !errors.As(err, &refusal) {
					t.Fatalf("it is not refused: %+v, %v", d, err)
				}
				return
			}
			if err != nil || d[0].Hold == nil || *d[0].Hold != (admit.Hold{Kind: view.WaitsForRoom, Sentence: row.waits}) || d[0].Outcome != view.Held || len(d[0].Bounds) != 1 {
				t.Fatalf("got %+v, %v", d, err)
			}
			written := ""
			for i, task := range d[0].Tasks {
				for _, one := range task.Devices {
					if written != "" {
						written += "; "
					}
					written += fmt.Sprintf("%s %d", one.Name, one.Count)
				}
				if task.Task != a.Tasks[i].Task {
					t.Errorf("task %d is %q", i, task.Task)
				}
			}
			if written != row.blocks {
				t.Errorf("it waits with %q, want %q", written, row.blocks)
			}
		})
	}
}

// second gives a group a second task.
func second(a *admit.Ask, request string) {
	r, err := gpu.ParseRequest(request)
	if err != nil {
		panic(err)
	}
	a.Tasks = append(a.Tasks, admit.TaskAsk{Task: "u", Driver: "containerd", Request: r})
}

// When the node that was waited for joins, the job gets the blocks that it takes there, and is
// charged what it costs there.
func TestWhatWasAwaitedStartsWhenItJoins(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	a.NodePool = "burst"
	if d := s.Submit(t, a); d.Hold == nil {
		t.Fatalf("it is not held: %+v", d)
	}
	s.Register(a)
	s.Block(a, 1)
	n := servicetest.Machine("b", 1)
	n.Plan.Pool = "burst"
	joins(s, n)
	s.LetTimePass()
	due := s.Next(nil, true)
	if due == nil || due.Job.ID != "job" {
		t.Fatalf("due is %+v", due)
	}
	d := revise(t, s, a, due.Revision)
	if d == nil || d.Hold != nil || d.Tasks[0].Devices[0].Count != 8 || d.Preferred[0] != "id-b" {
		t.Fatalf("it is registered with %+v", d)
	}
	if cost := recorded(s, a).Cost; cost.Milli != 500 {
		t.Errorf("it costs %s", cost)
	}
}
