package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// guardedConfig is a Nomad with ACLs, server and client in one. It takes the data
// folder, the plugin folder, three ports, the topology file, and folders for the
// device plugin's state, its data and the simulator.
const guardedConfig = `
name       = "guarded"
data_dir   = %q
plugin_dir = %q
bind_addr  = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = %s
  rpc  = %s
  serf = %s
}
disable_update_check = true
acl {
  enabled = true
}
server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}
client {
  enabled                 = true
  network_interface       = "lo"
  cpu_total_compute       = 40000
  memory_total_mb         = 65536
  gc_disk_usage_threshold = 99
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
plugin "nomad-device-gpu" {
  config {
    mode      = "slice"
    sharing   = "timeslice"
    state_dir = %q
    data_dir  = %q
    simulation {
      topology = %q
      dir      = %q
    }
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

// guarded starts that Nomad; the cluster's client has the management token.
func guarded(ctx context.Context, t *testing.T) *cluster.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "nomad-gpu-acl-")
	if err != nil {
		t.Fatal(err)
	}
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "bin", "nomad-device-gpu"), filepath.Join(plugins, "nomad-device-gpu")); err != nil {
		t.Fatal(err)
	}
	var ports [3]string
	for i := range ports {
		_, ports[i], _ = strings.Cut(freeAddress(t), ":")
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf(guardedConfig, at("nomad"), plugins, ports[0], ports[1], ports[2],
		at("state"), at("data"), filepath.Join(root, "e2e", "topology", "t4.hcl"), at("sim"))
	if err := os.WriteFile(at("agent.hcl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(filepath.Join(root, "bin", "e2e", "nomad"), "agent", "-config", at("agent.hcl"))
	agent.Env = append(os.Environ(), "AWS_CA_BUNDLE=")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	c := &cluster.Cluster{URL: "http://127.0.0.1:" + ports[0]}
	if c.API, err = api.NewClient(&api.Config{Address: c.URL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stopAll(t, c.API)
		until(context.Background(), t, "give back the mounts", 30*time.Second, func() (bool, string) {
			mounts, err := os.ReadFile("/proc/self/mounts")
			return err == nil && !strings.Contains(string(mounts), dir), fmt.Sprint(err)
		})
		_ = agent.Process.Signal(syscall.SIGINT) // it may have ended by itself
		_ = agent.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	until(ctx, t, "bootstrap ACLs", 30*time.Second, func() (bool, string) {
		token, _, err := c.API.ACLTokens().Bootstrap(nil)
		if err != nil {
			return false, err.Error()
		}
		c.API.SetSecretID(token.SecretID)
		return true, ""
	})
	until(ctx, t, "see the GPUs", 40*time.Second, func() (bool, string) {
		nodes, _, err := c.API.Nodes().List(&api.QueryOptions{Params: map[string]string{"resources": "true"}})
		return err == nil && len(nodes) == 1 && nodes[0].Status == "ready" && len(nodes[0].NodeResources.Devices) == 2, fmt.Sprint(err)
	})
	return c
}

// stopAll ends the tasks, which would outlive the agent with their mounts.
func stopAll(t *testing.T, c *api.Client) {
	everywhere := &api.QueryOptions{Namespace: "*"}
	jobs, _, err := c.Jobs().List(everywhere)
	if err != nil {
		t.Error(err)
	}
	for _, j := range jobs {
		if _, _, err := c.Jobs().Deregister(j.ID, true, &api.WriteOptions{Namespace: j.Namespace}); err != nil {
			t.Error(err)
		}
	}
	until(context.Background(), t, "stop all tasks", 30*time.Second, func() (bool, string) {
		list, _, err := c.Allocations().List(everywhere)
		for _, a := range list {
			if !cluster.Terminal(a) {
				return false, a.ID
			}
		}
		return err == nil, fmt.Sprint(err)
	})
	nodes, _, err := c.Nodes().List(nil)
	if err != nil {
		t.Error(err)
	}
	for _, n := range nodes { // gives back the mounts of ended tasks
		// The answer has no body, which the client does not expect.
		if err := c.Nodes().GC(n.ID, nil); err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

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

// TestLeastPrivilege runs the service with the policy that is given to
// operators: admission, holding, preemption and its own records need no more.
func TestLeastPrivilege(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	c := guarded(ctx, t)
	policy, err := os.ReadFile(filepath.Join(root, "examples", "service", "policy.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	own := token(t, c.API, "nomad-gpu-scheduler", string(policy))
	alice := token(t, c.API, "alice", `namespace "default" { policy = "write" }`)
	reader := token(t, c.API, "reader", `namespace "default" { policy = "read" }`)
	t.Setenv("NOMAD_TOKEN", own)
	r := serve(ctx, t, c, quick)

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
	if status, _ := get(ctx, t, r.URL+"/v1/jobs"); status != http.StatusForbidden {
		t.Errorf("nobody lists jobs: %d, the service lends its token", status)
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

	log, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{own, alice, reader} {
		if strings.Contains(string(log), secret) {
			t.Error("a token is in the service's log")
		}
	}
	if strings.Contains(string(log), "Permission denied") {
		t.Errorf("the policy denies something:\n%s", log)
	}
	if !strings.Contains(string(log), `"name":"alice"`) {
		t.Error("the audit log does not name alice")
	}
}
