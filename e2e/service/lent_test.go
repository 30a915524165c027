// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

const lends = quick + `
queue "a" {
  gpus       = 0.5
  namespaces = ["team-a"]
}
queue "b" {
  gpus       = 2
  namespaces = ["team-b"]
}
`

// TestWhatWasLentComesBackBesideAJobThatWaits has a job wait for both GPUs of the node. What is free there
// is kept for it, and another job of its queue takes the place of what the queue has lent; when the last
// work has ended that is in its way, the first has all of it.
func TestWhatWasLentComesBackBesideAJobThatWaits(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	for _, name := range []string{"team-a", "team-b"} {
		if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	r := serve(ctx, t, c, lends)
	run := func(namespace, id string, want bool) {
		t.Helper()
		until(ctx, t, fmt.Sprintf("have job %s run: %v", id, want), 40*time.Second, func() (bool, string) {
			live := allocs(ctx, t, c.API, namespace, id)
			return (len(live) == 1 && live[0].ClientStatus == "running") == want, fmt.Sprint(len(live))
		})
	}
	admitted(ctx, t, r, job{id: "firm", namespace: "team-a", kind: "batch", priority: 90, meta: map[string]string{"gpu": "0.5"}})
	run("team-a", "firm", true)
	admitted(ctx, t, r, job{id: "lent", namespace: "team-a", kind: "batch", meta: map[string]string{"gpu": "0.5"}})
	run("team-a", "lent", true)
	admitted(ctx, t, r, job{id: "both", namespace: "team-b", kind: "batch", priority: 70, meta: map[string]string{"gpu": "2"}})
	until(ctx, t, "see that both GPUs are waited for", 20*time.Second, func() (bool, string) {
		var shown struct{ Pending []struct{ Reason string } }
		_, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, nil)
		return err == nil && len(shown.Pending) == 1, fmt.Sprint(err, shown.Pending)
	})
	admitted(ctx, t, r, job{id: "own", namespace: "team-b", kind: "batch", priority: 30, meta: map[string]string{"gpu": "0.5"}})
	run("team-b", "own", true)
	run("team-a", "lent", false)
	time.Sleep(10 * time.Second) // nothing of this changes by itself
	run("team-b", "own", true)
	run("team-a", "lent", false)
	run("team-a", "firm", true)
	if _, _, err := c.API.Jobs().Deregister("firm", false, &api.WriteOptions{Namespace: "team-a"}); err != nil {
		t.Fatal(err)
	}
	run("team-b", "both", true)
	run("team-b", "own", false)
	doubleBooked(ctx, t, c.API)
}
