// Package distributed runs the example of a distributed training on a real
// Nomad: admitted as the placement service admits it, with plain sockets in
// place of GPUs.
package distributed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

const example = "../../examples/service/distributed.nomad.hcl"

const config = `
data_dir  = %q
bind_addr = "127.0.0.1"
log_level = "WARN"
disable_update_check = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled           = true
  network_interface = "lo"
  cpu_total_compute = 40000
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean" }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
acl {
  enabled = %t
}
`

// agent starts Nomad, server and client in one, or skips the test without it.
func agent(t *testing.T, acls bool) *nomad.Client {
	t.Helper()
	dir := t.TempDir()
	ports := freePorts(t, 3)
	file := filepath.Join(dir, "agent.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, filepath.Join(dir, "data"), ports[0], ports[1], ports[2], acls), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "nomad.log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary(t), "agent", "-config", file)
	command.Stdout, command.Stderr = log, log
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "AWS_") && !strings.HasPrefix(pair, "NOMAD_") {
			command.Env = append(command.Env, pair)
		}
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log.Name()) //nolint:errcheck // more than the failure itself is a gift
			t.Logf("Nomad's log:\n%s", text)
		}
		command.Process.Signal(syscall.SIGINT)                                         //nolint:errcheck // it may have ended
		command.Wait()                                                                 //nolint:errcheck // likewise
		log.Close()                                                                    //nolint:errcheck // only written by Nomad
		mounts, _ := filepath.Glob(filepath.Join(dir, "data", "alloc", "*", "*", "*")) //nolint:errcheck // the pattern is well formed
		for _, mount := range mounts {
			syscall.Unmount(mount, 0) //nolint:errcheck // most of them are plain folders
		}
	})
	client, err := nomad.NewClient(&nomad.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func binary(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("NOMAD_GPU_CACHE")
	if cache == "" {
		cache = "/var/cache/nomad-gpu"
	}
	for _, path := range []string{"../../bin/e2e/nomad", filepath.Join(cache, "bin", "nomad"), "nomad"} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	t.Skip("no nomad binary here; make prepare builds one")
	return ""
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // only to find a free port
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// until asks again and again, until there is no error.
func until(t *testing.T, ctx context.Context, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

func ready(t *testing.T, ctx context.Context, client *nomad.Client) {
	t.Helper()
	until(t, ctx, "wait for a ready node", func() error {
		nodes, _, err := client.Nodes().List(nil)
		if err == nil && (len(nodes) == 0 || nodes[0].Status != "ready") {
			err = errors.New("no node is ready")
		}
		return err
	})
}

func TestRanksFindEachOther(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed; it is what the ranks run")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	client := agent(t, false)
	ready(t, ctx, client)
	for _, kind := range []framework.Kind{framework.PyTorch, framework.TensorFlow} {
		t.Run(string(kind), func(t *testing.T) {
			id := "distributed-" + string(kind)
			register(t, client, admitted(t, client, id, kind, 2))
			until(t, ctx, "wait for both ranks", func() error { return complete(client, id) })
			allocs, _, err := client.Jobs().Allocations(id, true, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(allocs) != 2 {
				t.Errorf("%d allocs ran, want 2: a rank was started in vain", len(allocs))
			}
			for _, a := range allocs {
				want := fmt.Sprintf("rank %s of 2: sum 3\n", a.Name[len(a.Name)-2:len(a.Name)-1])
				if got := output(t, client, a); got != want {
					t.Errorf("alloc %s said %q, want %q", a.Name, got, want)
				}
				if restarts := a.TaskStates["rank"].Restarts; restarts != 0 {
					t.Errorf("rank %s was restarted %d times", a.Name, restarts)
				}
			}
		})
	}
}

// TestRanksWait starts a rank without a master: its template must wait, and go
// on when the master appears.
func TestRanksWait(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed; it is what the ranks run")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := agent(t, false)
	ready(t, ctx, client)
	job := admitted(t, client, "lonely", framework.PyTorch, 1)
	tags := job.TaskGroups[0].Services[0].Tags
	job.TaskGroups[0].Services[0].Tags = []string{"rank-7"}
	register(t, client, job)
	until(t, ctx, "wait for the template to wait", func() error { return waits(client, "lonely") })
	job.TaskGroups[0].Services[0].Tags = tags
	register(t, client, job)
	until(t, ctx, "wait for the rank to end", func() error {
		allocs, _, err := client.Jobs().Allocations("lonely", true, nil)
		if err != nil {
			return err
		}
		for _, a := range allocs {
			if a.ClientStatus == nomad.AllocClientStatusComplete {
				return nil
			}
		}
		return fmt.Errorf("none of %d allocs is complete", len(allocs))
	})
	allocs, _, err := client.Jobs().Allocations("lonely", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, client, allocs[0]); got != "rank 0 of 1: sum 1\n" {
		t.Errorf("it said %q", got)
	}
}

// waits reports whether Nomad says that a template misses something.
func waits(client *nomad.Client, id string) error {
	allocs, _, err := client.Jobs().Allocations(id, true, nil)
	if err != nil {
		return err
	}
	for _, a := range allocs {
		state := a.TaskStates["rank"]
		if state == nil {
			continue
		}
		for _, e := range state.Events {
			if strings.Contains(e.DisplayMessage, "Missing") {
				return nil
			}
		}
	}
	return errors.New("no task event says so")
}

// admitted is the example as the service registers it, with a driver that needs
// no image and without the device that this machine has not.
func admitted(t *testing.T, client *nomad.Client, id string, kind framework.Kind, count int) *nomad.Job {
	t.Helper()
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	job, err := client.Jobs().ParseHCL(string(text), true)
	if err != nil {
		t.Fatal(err)
	}
	job.ID, job.Name, job.TaskGroups[0].Count = &id, &id, &count
	task := job.TaskGroups[0].Tasks[0]
	task.Driver = "raw_exec"
	delete(task.Config, "image")
	task.Meta[framework.MetaFramework] = string(kind)
	body, err := json.Marshal(map[string]any{"Job": job})
	if err != nil {
		t.Fatal(err)
	}
	read, err := admit.Read(body, admit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	text, err = read.Apply([]admit.Decision{{Group: "ranks", Tasks: []admit.TaskDecision{{
		Task: "rank", Devices: []admit.Device{{Name: "nvidia/gpu", Count: 1}},
		Holds: framework.Share{GPUs: 1, Whole: true, MemoryMiB: 81_559, Type: "H100"},
	}}}}, admit.Link{})
	if err != nil {
		t.Fatal(err)
	}
	var request struct{ Job *nomad.Job }
	if err := json.Unmarshal(text, &request); err != nil {
		t.Fatal(err)
	}
	request.Job.TaskGroups[0].Tasks[0].Resources.Devices = nil
	return request.Job
}

func register(t *testing.T, client *nomad.Client, job *nomad.Job) {
	t.Helper()
	if _, _, err := client.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
}

func complete(client *nomad.Client, id string) error {
	allocs, _, err := client.Jobs().Allocations(id, true, nil)
	if err != nil {
		return err
	}
	done := 0
	for _, a := range allocs {
		if a.ClientStatus == nomad.AllocClientStatusComplete {
			done++
		}
	}
	if done < 2 {
		return fmt.Errorf("%d of %d allocs are complete", done, len(allocs))
	}
	return nil
}

func output(t *testing.T, client *nomad.Client, a *nomad.AllocationListStub) string {
	t.Helper()
	file, err := client.AllocFS().Cat(&nomad.Allocation{ID: a.ID, NodeID: a.NodeID}, "alloc/logs/rank.stdout.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNomadsTokensDecide asks a Nomad with ACLs what tokens may do.
func TestNomadsTokensDecide(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := agent(t, true)
	var root *nomad.ACLToken
	until(t, ctx, "bootstrap ACLs", func() (err error) {
		root, _, err = client.ACLTokens().Bootstrap(nil)
		return err
	})
	client.SetSecretID(root.SecretID)
	ready(t, ctx, client)
	if _, err := client.Namespaces().Register(&nomad.Namespace{Name: "research"}, nil); err != nil {
		t.Fatal(err)
	}
	token := func(name, rules string) string {
		if _, err := client.ACLPolicies().Upsert(&nomad.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		made, _, err := client.ACLTokens().Create(&nomad.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	gate, err := api.NewNomadGate(nomad.Config{Address: client.Address(), SecretID: root.SecretID})
	if err != nil {
		t.Fatal(err)
	}
	reader := token("reader", `node { policy = "read" } namespace "research" { policy = "read" }`)
	writer := token("writer", `namespace "research" { policy = "write" }`)
	for _, row := range []struct {
		name, token                               string
		read, research, other, submit, nowhereToo bool
	}{
		{"root", root.SecretID, true, true, true, true, false},
		{"reader", reader, true, true, false, false, false},
		{"writer", writer, false, true, false, true, false},
		{"anonymous", "", false, false, false, false, false},
		{"made up", "6e3b2a52-aaaa-bbbb-cccc-0123456789ab", false, false, false, false, false},
	} {
		for what, got := range map[string]struct {
			err  error
			want bool
		}{
			"read nodes":              {gate.MayRead(ctx, row.token), row.read},
			"read research":           {gate.MayReadNamespace(ctx, row.token, "research"), row.research},
			"read default":            {gate.MayReadNamespace(ctx, row.token, "default"), row.other},
			"submit to research":      {gate.MaySubmit(ctx, row.token, "research"), row.submit},
			"submit to default":       {gate.MaySubmit(ctx, row.token, "default"), row.name == "root"},
			"submit to no such place": {gate.MaySubmit(ctx, row.token, "nowhere"), row.nowhereToo},
		} {
			if (got.err == nil) != got.want {
				t.Errorf("%s, %s: %v, want %v", row.name, what, got.err, got.want)
			}
		}
	}
	jobs, _, err := client.Jobs().List(&nomad.QueryOptions{Namespace: "*"})
	if err != nil || len(jobs) != 0 {
		t.Errorf("asking left %d jobs behind, error %v", len(jobs), err)
	}
}
