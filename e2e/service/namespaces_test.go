// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// makeNamespace makes a namespace of Nomad's.
func makeNamespace(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
		t.Fatal(err)
	}
}

// counts waits until the service shows so many thousandths of GPUs as used by a queue. Without a
// word of Nomad's it would read of them within five minutes.
func counts(ctx context.Context, t *testing.T, r *replica, queue string, want int64) {
	t.Helper()
	took := until(ctx, t, fmt.Sprintf("count %d of queue %s", want, queue), 30*time.Second, func() (bool, string) {
		var shown struct {
			Queues []struct {
				Name string
				Used int64 `json:"used_milli"`
			}
		}
		_, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, (&api.QueryOptions{}).WithContext(ctx))
		for _, q := range shown.Queues {
			if q.Name == queue && q.Used == want {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v, %v", shown.Queues, err)
	})
	t.Logf("%d of queue %s counted after %s", want, queue, took.Round(10*time.Millisecond))
}

// direct is a job of all 14 slices of one T4, which is sent to Nomad itself.
func direct(namespace, id string, seconds int) job {
	count := uint64(14)
	return job{id: id, namespace: namespace, kind: "batch", seconds: seconds, devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &count}}}
}

// TestANamespaceThatIsMadeLaterCounts: an event stream covers the namespaces that there are when
// it is opened. What runs in one that is made then, and made again, takes of its queue's quota and
// of the room that reservations are given, makes room for the queue that it borrows of, and stands
// in the ledger.
func TestANamespaceThatIsMadeLaterCounts(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick+fmt.Sprintf(`
ledger { path = %q }
queue "owner" {
  gpus       = 2
  namespaces = ["default"]
}
queue "late" {
  gpus       = 0
  namespaces = ["late"]
}
`, t.TempDir()))
	admits(ctx, t, r)
	makeNamespace(t, c, "late")
	if err := submit(ctx, c.API, direct("late", "borrows", 0)); err != nil {
		t.Fatal(err)
	}
	runsIn(ctx, t, c.API, "late", "borrows", 1)
	counts(ctx, t, r, "late", 1000)
	var refused struct{ Details []string }
	if status := r.call(ctx, t, "POST", "/api/v1/gpu/allocate", `{"gpu_count":2}`, &refused); status != http.StatusConflict {
		t.Errorf("two GPUs are promised where one is free: %d %+v", status, refused)
	}
	admitted(ctx, t, r, job{id: "owns", kind: "batch", meta: map[string]string{"gpu": "2"}})
	runs(ctx, t, c.API, "owns", 1)
	if live := allocs(ctx, t, c.API, "late", "borrows"); len(live) > 0 {
		t.Error("what was borrowed is not given back")
	}
	for _, id := range []string{"owns", "borrows"} {
		if _, _, err := c.API.Jobs().Deregister(id, true, &api.WriteOptions{Namespace: map[string]string{"borrows": "late"}[id]}); err != nil {
			t.Fatal(err)
		}
	}
	counts(ctx, t, r, "late", 0)

	until(ctx, t, "delete the namespace", 30*time.Second, func() (bool, string) {
		_, err := c.API.Namespaces().Delete("late", nil)
		return err == nil, fmt.Sprint(err)
	})
	makeNamespace(t, c, "late")
	if err := submit(ctx, c.API, direct("late", "again", 5)); err != nil {
		t.Fatal(err)
	}
	runsIn(ctx, t, c.API, "late", "again", 1)
	counts(ctx, t, r, "late", 1000)
	until(ctx, t, "enter the job in the ledger", 30*time.Second, func() (bool, string) {
		rows, err := entries(ctx, r, "again")
		return err == nil && len(rows) == 1 && rows[0].Queue == "late" && rows[0].To != nil && rows[0].Ended == "complete", fmt.Sprintf("%+v, %v", rows, err)
	})
}

// TestWhatATokenMayReadLaterCounts: the service's own token is given rights in a namespace after that was
// made, as with a policy that names each.
func TestWhatATokenMayReadLaterCounts(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 1, cluster.Options{ACLs: true})
	only := func(namespace string) (rules string) {
		return strings.Replace(ownPolicy(t), `namespace "*"`, fmt.Sprintf("namespace %q", namespace), 1)
	}
	own := token(t, c.API, "own", only("elsewhere"))
	r := serveWith(ctx, t, c, launch{nomad: c.URL, token: own, config: "queue \"late\" {\n gpus = 1\n namespaces = [\"late\"]\n}\n"})
	r.API.SetSecretID(token(t, c.API, "alice", `namespace "default" { policy = "write" }
node { policy = "read" }`))
	admits(ctx, t, r)
	makeNamespace(t, c, "late")
	if err := submit(ctx, c.API, direct("late", "unseen", 0)); err != nil {
		t.Fatal(err)
	}
	runsIn(ctx, t, c.API, "late", "unseen", 1)
	if _, err := c.API.ACLPolicies().Upsert(&api.ACLPolicy{Name: "own", Rules: only("late")}, nil); err != nil {
		t.Fatal(err)
	}
	counts(ctx, t, r, "late", 1000)
}
