// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

const quick = `
preemption { min_run_time = "0s" }
`

// TestPreemption fills one GPU with work of two priorities, asks for room with
// a third, and looks who went and who got the room.
func TestPreemption(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick)
	// Fourteen slices each: one GPU is full, the other holds low and middle.
	admitted(ctx, t, r, job{id: "full", priority: 70, meta: map[string]string{"gpu": "1"}})
	admitted(ctx, t, r, job{id: "low", priority: 20, meta: map[string]string{"gpu": "5G"}})
	admitted(ctx, t, r, job{id: "middle", priority: 30, meta: map[string]string{"gpu": "9G"}})
	for _, id := range []string{"full", "low", "middle"} {
		runs(ctx, t, c.API, id, 1)
	}
	middle := allocs(ctx, t, c.API, "default", "middle")[0].ID
	admitted(ctx, t, r, job{id: "high", priority: 60, meta: map[string]string{"gpu": "4G"}})
	began := time.Now()
	runs(ctx, t, c.API, "high", 1)
	t.Logf("the room was made and taken in %s", time.Since(began).Round(10*time.Millisecond))
	if live := allocs(ctx, t, c.API, "default", "middle"); len(live) != 1 || live[0].ID != middle {
		t.Errorf("the wrong victim went: %d allocs of job middle", len(live))
	}
	if live := allocs(ctx, t, c.API, "default", "low"); len(live) != 0 {
		t.Errorf("job low still has %d allocs", len(live))
	}
	doubleBooked(ctx, t, c.API)

	// When room returns, the victim does too: nothing keeps it off its node.
	if err := c.Stop(ctx, "high"); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "low", 1)
	until(ctx, t, "take the node back in", 20*time.Second, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("low", nil)
		if err != nil {
			return false, err.Error()
		}
		text := constraints(j)
		return !strings.Contains(text, c.Nodes[0].ID) && !strings.Contains(text, "set_contains_any"), text
	})
}

func constraints(j *api.Job) string {
	var list []string
	for _, x := range j.TaskGroups[0].Constraints {
		list = append(list, x.LTarget+" "+x.Operand+" "+x.RTarget)
	}
	return strings.Join(list, "; ")
}

// TestEqualPriorityStays asks for room that only equals hold.
func TestEqualPriorityStays(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick)
	admitted(ctx, t, r, job{id: "all", meta: map[string]string{"gpu": "2"}})
	before := runs(ctx, t, c.API, "all", 1)[0].ID
	admitted(ctx, t, r, job{id: "equal", meta: map[string]string{"gpu": "1G"}})
	until(ctx, t, "have evictions looked for in vain", 30*time.Second, func() (bool, string) {
		_, _, text := r.ask(t, "GET", "/api/v1/gpu/cluster", "")
		return strings.Contains(string(text), "no eviction that is allowed would make room"), string(text)
	})
	if live := allocs(ctx, t, c.API, "default", "all"); len(live) != 1 || live[0].ID != before {
		t.Error("work of equal priority was evicted")
	}
	if live := allocs(ctx, t, c.API, "default", "equal"); len(live) != 0 {
		t.Error("there was room after all")
	}
}

const teams = `
preemption { min_run_time = "0s" }
queue "a" {
  gpus       = 1
  namespaces = ["team-a"]
}
queue "b" {
  gpus       = 1
  namespaces = ["team-b"]
}
queue "c" {
  gpus       = 0.5
  borrow     = false
  namespaces = ["team-c"]
}
`

// TestQuota lets a team borrow, another take its own back, and a third wait
// for its quota with the reason in Nomad's own words.
func TestQuota(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	for _, name := range []string{"team-a", "team-b", "team-c"} {
		if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	r := serve(ctx, t, c, teams)
	running := func(namespace, id string, count int) {
		t.Helper()
		until(ctx, t, fmt.Sprintf("run %d of %s/%s", count, namespace, id), 40*time.Second, func() (bool, string) {
			live := allocs(ctx, t, c.API, namespace, id)
			n := 0
			for _, a := range live {
				if a.ClientStatus == "running" {
					n++
				}
			}
			return n == count && len(live) == count, fmt.Sprintf("%d of %d", n, len(live))
		})
	}
	admitted(ctx, t, r, job{id: "one", namespace: "team-a", meta: map[string]string{"gpu": "1"}})
	running("team-a", "one", 1)
	admitted(ctx, t, r, job{id: "borrowed", namespace: "team-a", meta: map[string]string{"gpu": "1"}})
	running("team-a", "borrowed", 1)
	admitted(ctx, t, r, job{id: "own", namespace: "team-b", meta: map[string]string{"gpu": "1"}})
	running("team-b", "own", 1)
	until(ctx, t, "reclaim exactly one GPU", 10*time.Second, func() (bool, string) {
		n := len(allocs(ctx, t, c.API, "team-a", "one")) + len(allocs(ctx, t, c.API, "team-a", "borrowed"))
		return n == 1, fmt.Sprintf("team-a has %d allocs", n)
	})

	if err := submit(ctx, r.API, job{id: "never", namespace: "team-c", meta: map[string]string{"gpu": "0.75"}}); err == nil || !strings.Contains(err.Error(), "at most 0.5") {
		t.Errorf("more than the queue may ever hold: %v", err)
	}
	if _, _, err := c.API.Jobs().Deregister("own", true, &api.WriteOptions{Namespace: "team-b"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.API.Jobs().Deregister("borrowed", true, &api.WriteOptions{Namespace: "team-a"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.API.Jobs().Deregister("one", true, &api.WriteOptions{Namespace: "team-a"}); err != nil {
		t.Fatal(err)
	}
	admitted(ctx, t, r, job{id: "half", namespace: "team-c", meta: map[string]string{"gpu": "0.5"}})
	running("team-c", "half", 1)
	admitted(ctx, t, r, job{id: "waits", namespace: "team-c", meta: map[string]string{"gpu": "0.25"}})
	until(ctx, t, "say why the job waits", 20*time.Second, func() (bool, string) {
		evals, _, err := c.API.Jobs().Evaluations("waits", &api.QueryOptions{Namespace: "team-c"})
		if err != nil {
			return false, err.Error()
		}
		text := fmt.Sprint(evals)
		for _, e := range evals {
			for _, m := range e.FailedTGAllocs {
				text += fmt.Sprint(m.ConstraintFiltered)
			}
		}
		return strings.Contains(text, "waits for quota"), text
	})
	if _, _, err := c.API.Jobs().Deregister("half", true, &api.WriteOptions{Namespace: "team-c"}); err != nil {
		t.Fatal(err)
	}
	running("team-c", "waits", 1)
	if _, _, err := c.API.Jobs().Deregister("waits", true, &api.WriteOptions{Namespace: "team-c"}); err != nil {
		t.Fatal(err)
	}
	failureKeepsQuota(ctx, t, c, r)
	doubleBooked(ctx, t, c.API)
}
