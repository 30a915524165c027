// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// token makes a token with a policy of these rules.
func token(t *testing.T, c *api.Client, name, rules string) string {
	t.Helper()
	if _, err := c.ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
		t.Fatal(err)
	}
	made, _, err := c.ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.SecretID
}

// ownPolicy is what operators are given for the service's own token.
func ownPolicy(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples", "service", "policy.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// chatty says everything that there is to say.
const chatty = quick + `
log_level               = "TRACE"
monitor_update_interval = "1s"
`

// TestLeastPrivilege runs the service with the policy that is given to
// operators: admission, holding, preemption, reservations, measurements and its
// own records need no more. What callers may do is decided by their tokens.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 1, cluster.Options{ACLs: true})
	own := token(t, c.API, "nomad-gpu-scheduler", ownPolicy(t))
	alice := token(t, c.API, "alice", `namespace "default" { policy = "write" }`)
	reader := token(t, c.API, "reader", `namespace "default" { policy = "read" }`)
	watcher := token(t, c.API, "watcher", `node { policy = "read" }`)
	r := serveWith(ctx, t, c, launch{nomad: c.URL, token: own, config: chatty})

	r.API.SetSecretID(alice)
	admits(ctx, t, r)
	never := job{id: "never", meta: map[string]string{"gpu": "9"}}
	for who, secret := range map[string]string{"nobody": "", "reader": reader} {
		r.API.SetSecretID(secret)
		for _, j := range []job{never, {id: "one", meta: map[string]string{"gpu": "1G"}}} {
			if err := submit(ctx, r.API, j); err == nil || !strings.Contains(err.Error(), "403") || strings.Contains(err.Error(), "node") {
				t.Errorf("%s submits %s: %v", who, j.id, err)
			}
		}
	}
	r.API.SetSecretID(alice)
	if err := submit(ctx, r.API, never); err == nil || !strings.Contains(err.Error(), "422") {
		t.Errorf("alice submits what never fits: %v", err)
	}

	// Two GPUs: full and low hold them, high needs one.
	admitted(ctx, t, r, job{id: "full", priority: 70, meta: map[string]string{"gpu": "1"}})
	admitted(ctx, t, r, job{id: "low", priority: 20, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "full", 1)
	runs(ctx, t, c.API, "low", 1)
	admitted(ctx, t, r, job{id: "high", priority: 60, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "high", 1)
	if live := allocs(ctx, t, c.API, "default", "low"); len(live) != 0 {
		t.Errorf("job low still has %d allocs", len(live))
	}
	doubleBooked(ctx, t, c.API)
	mayRead(ctx, t, r, map[string]string{"nobody": "", "alice": alice, "watcher": watcher})
	reserves(ctx, t, r, map[string]string{"nobody": "", "reader": reader, "alice": alice})
	mayNot(ctx, t, c, own)

	log := r.said(t)
	if strings.Contains(log, "Permission denied") {
		t.Errorf("the policy denies something:\n%s", log)
	}
	if !strings.Contains(log, `"name":"alice"`) {
		t.Error("the audit log does not name alice")
	}
	logs, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(c.Nodes[0].Log("nomad"))), "*", "*.log"))
	if err != nil || len(logs) < 3 {
		t.Errorf("the logs of the run are %v: %v", logs, err)
	}
	for _, path := range append(logs, r.log) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		for who, secret := range map[string]string{"the service": own, "alice": alice, "reader": reader, "watcher": watcher} {
			if strings.Contains(string(text), secret) {
				t.Errorf("the token of %s is in %s", who, path)
			}
		}
	}
}

// mayRead asks for everything that shows the cluster: only who may read nodes
// sees it, and no names of jobs in namespaces that are closed to them.
func mayRead(ctx context.Context, t *testing.T, r *replica, tokens map[string]string) {
	t.Helper()
	for _, path := range []string{"/api/v1/gpu/status", "/api/v1/gpu/cluster", "/gpu/data", "/metrics"} {
		for who, secret := range tokens {
			want := http.StatusForbidden
			if who == "watcher" {
				want = http.StatusOK
			}
			status, text := getAs(ctx, t, r.URL+path, secret)
			if status != want {
				t.Errorf("%s gets %s: %d, want %d", who, path, status, want)
			}
			if strings.Contains(text, "full") {
				t.Errorf("%s reads the name of a job in %s", who, path)
			}
		}
	}
	if status, _ := getAs(ctx, t, r.URL+"/v1/jobs", ""); status != http.StatusForbidden {
		t.Errorf("a caller without a token lists jobs: %d, the service lends its token", status)
	}
}

// reserves asks for reservations: only who may submit gets one, and only who may
// read the namespace learns what would fit.
func reserves(ctx context.Context, t *testing.T, r *replica, tokens map[string]string) {
	t.Helper()
	for who, secret := range tokens {
		for path, want := range map[string]int{"/api/v1/gpu/validate": http.StatusOK, "/api/v1/gpu/allocate": http.StatusConflict} {
			if who == "nobody" || who == "reader" && path == "/api/v1/gpu/allocate" {
				want = http.StatusForbidden
			}
			var answer struct{ Error string }
			if status := r.callAs(ctx, t, secret, http.MethodPost, path, `{"request":"2"}`, &answer); status != want {
				t.Errorf("%s asks %s for two GPUs: %d %s, want %d", who, path, status, answer.Error, want)
			}
		}
	}
}

// mayNot tries what the service's own token has no business with.
func mayNot(ctx context.Context, t *testing.T, c *cluster.Cluster, own string) {
	t.Helper()
	config := api.Config{Address: c.URL, SecretID: own}
	as, err := api.NewClient(&config)
	if err != nil {
		t.Fatal(err)
	}
	high, err := c.Running(ctx, "high")
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"list tokens":              func() error { _, _, err := as.ACLTokens().List(nil); return err },
		"make a policy":            func() error { _, err := as.ACLPolicies().Upsert(&api.ACLPolicy{Name: "x", Rules: ""}, nil); return err },
		"make a namespace":         func() error { _, err := as.Namespaces().Register(&api.Namespace{Name: "x"}, nil); return err },
		"read somebody's variable": func() error { _, _, err := as.Variables().Peek("nomad/jobs/full", nil); return err },
		"write somebody's variable": func() error {
			_, _, err := as.Variables().Update(&api.Variable{Path: "nomad/jobs/full", Items: api.VariableItems{"a": "b"}}, nil)
			return err
		},
		"make a node ineligible":   func() error { _, err := as.Nodes().ToggleEligibility(c.Nodes[0].ID, false, nil); return err },
		"read the files of a task": func() error { _, _, err := as.AllocFS().List(high, "/", nil); return err },
		"change how Nomad schedules": func() error {
			_, _, err := as.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{}, nil)
			return err
		},
		"read the agent's own config": func() error { _, err := as.Agent().Self(); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
}
