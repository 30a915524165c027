// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// serviceJob is the example of the service as a Nomad job, as far as the
// machines here allow it: all nodes share one address, so the port is any, Nomad
// is not at 4646, and the program is where it was built.
func serviceJob(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples", "service", "nomad-gpu-scheduler.nomad.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	job := string(text)
	for old, now := range map[string]string{
		`static = 4656`:                   ``,
		`"exec"`:                          `"raw_exec"`,
		`command = "nomad-gpu-scheduler"`: `command = "` + program + `"`,
		`http://{{ env "attr.unique.network.ip-address" }}:4646`:      c.URL,
		`min_healthy_time = "10s"`:                                    `min_healthy_time = "1s"`,
		"queue \"default\" {\n            namespaces = [\"default\"]": "queue \"default\" {\n            namespaces = [\"default\"]\n            models     = [{{ with nomadVar \"nomad/jobs/nomad-gpu-scheduler\" }}{{ .models }}{{ end }}]",
	} {
		if strings.Count(job, old) != 1 {
			t.Fatalf("the example does not say %q once", old)
		}
		job = strings.Replace(job, old, now, 1)
	}
	return job
}

// TestServiceAsJob runs the service as the example does: two replicas, with
// nothing but their identity as a Nomad job and the policy for it. The one that
// leads is killed, and the configuration changes under them.
func TestServiceAsJob(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 2, cluster.Options{ACLs: true})
	if _, err := c.API.ACLPolicies().Upsert(&api.ACLPolicy{Name: "nomad-gpu-scheduler", Rules: ownPolicy(t),
		JobACL: &api.JobACL{Namespace: "default", JobID: "nomad-gpu-scheduler"}}, nil); err != nil {
		t.Fatal(err)
	}
	models := &api.Variable{Path: "nomad/jobs/nomad-gpu-scheduler", Items: api.VariableItems{"models": `"T4"`}}
	if _, _, err := c.API.Variables().Update(models, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(ctx, serviceJob(t, c)); err != nil {
		t.Fatal(err)
	}
	replicas := asReplicas(ctx, t, c)
	for _, r := range replicas {
		r.API.SetSecretID(token(t, c.API, "alice", `namespace "default" { policy = "write" }`))
		admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1G"}})
	}
	code, out := nomad(ctx, t, replicas[0].URL, "job", "run", "-detach", filepath.Join(root, "examples", "service", "fraction.nomad.hcl"))
	if code != 1 || !strings.Contains(out, "403") {
		t.Errorf("without a token: exit %d\n%s", code, out)
	}

	// SIGHUP comes from the template, and the queue is the new one.
	models.Items["models"] = `"A100"`
	if _, _, err := c.API.Variables().Update(models, nil); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "read the configuration again", time.Minute, func() (bool, string) {
		err := submit(ctx, replicas[0].API, job{id: "second", meta: map[string]string{"gpu": "1G"}})
		return err != nil && strings.Contains(err.Error(), "no node can ever hold"), fmt.Sprint(err)
	})
	models.Items["models"] = `"T4"`
	if _, _, err := c.API.Variables().Update(models, nil); err != nil {
		t.Fatal(err)
	}
	admitted(ctx, t, replicas[0], job{id: "second", meta: map[string]string{"gpu": "1G"}})

	leader, other := leads(ctx, t, c, replicas)
	killTask(t, c, leader)
	took := admitted(ctx, t, other, job{id: "third", meta: map[string]string{"gpu": "1G"}})
	t.Logf("failover after a kill: %s", took.Round(10*time.Millisecond))
	if took > 45*time.Second {
		t.Errorf("failover took %s, want under 45s", took)
	}
	for _, id := range []string{"first", "second", "third"} {
		runs(ctx, t, c.API, id, 1)
	}
	doubleBooked(ctx, t, c.API)
	if err := c.Stop(ctx, "nomad-gpu-scheduler"); err != nil {
		t.Fatal(err)
	}
}

// asReplicas waits until both replicas are healthy in Nomad's own eyes.
func asReplicas(ctx context.Context, t *testing.T, c *cluster.Cluster) []*replica {
	t.Helper()
	var services []*api.ServiceRegistration
	until(ctx, t, "run two replicas", 3*time.Minute, func() (bool, string) {
		var err error
		services, _, err = c.API.Services().Get("nomad-gpu-scheduler", nil)
		if err != nil || len(services) != 2 {
			return false, fmt.Sprintf("%d services, %v", len(services), err)
		}
		for _, s := range services {
			checks, err := c.API.Allocations().Checks(s.AllocID, nil)
			if err != nil {
				return false, err.Error()
			}
			for _, check := range checks {
				if check.Status != "success" {
					return false, check.Output
				}
			}
		}
		return true, ""
	})
	var replicas []*replica
	for _, s := range services {
		r := &replica{URL: fmt.Sprintf("http://%s:%d", s.Address, s.Port), alloc: s.AllocID}
		r.API = must(api.NewClient(&api.Config{Address: r.URL}))
		replicas = append(replicas, r)
	}
	return replicas
}

// leads tells the replica that leads from the other one.
func leads(ctx context.Context, t *testing.T, c *cluster.Cluster, replicas []*replica) (leader, other *replica) {
	t.Helper()
	lock, _, err := c.API.Variables().Peek("nomad-gpu/leader", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		if r.URL == lock.Items["address"] {
			leader = r
		} else {
			other = r
		}
	}
	if leader == nil || other == nil {
		t.Fatalf("the leader is at %q, and no replica is", lock.Items["address"])
	}
	return leader, other
}

// killTask ends a replica that Nomad runs as a crash would.
func killTask(t *testing.T, c *cluster.Cluster, r *replica) {
	t.Helper()
	for _, n := range c.Nodes {
		pids, err := n.PIDs(program, "serve", r.alloc)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process of alloc %s", r.alloc)
}
