// SPDX-License-Identifier: MPL-2.0

// Package service tests the placement service end to end: a real Nomad, the
// device plugin on simulated GPUs, and nomad-gpu-scheduler as a process.
package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// root is the repository: tests run in their package's folder.
var root = filepath.Dir(filepath.Dir(must(os.Getwd())))

func TestMain(m *testing.M) {
	build := exec.Command("make", "--no-print-directory", "-s", "prepare", "build")
	build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build what the end-to-end tests run:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// program is the placement service: the one that was built, or NOMAD_GPU_SCHEDULER, with
// which another release is measured beside it.
var program = cmp.Or(os.Getenv("NOMAD_GPU_SCHEDULER"), filepath.Join(root, "bin", "nomad-gpu-scheduler"))

// cut is the device plugin's configuration of machines whose GPUs are cut.
const cut = `mode = "slice"
sharing = "timeslice"`

// start runs a cluster of so many machines with two T4 each, cut into slices.
func start(t *testing.T, machines int) (context.Context, *cluster.Cluster) {
	t.Helper()
	return startWith(t, machines, cluster.Options{})
}

func startWith(t *testing.T, machines int, o cluster.Options) (context.Context, *cluster.Cluster) {
	t.Helper()
	for range machines {
		o.Nodes = append(o.Nodes, cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "t4.hcl"), GPUs: cut})
	}
	return startCluster(t, o)
}

// startNodes runs a cluster of other machines.
func startNodes(t *testing.T, nodes ...cluster.NodeOptions) (context.Context, *cluster.Cluster) {
	t.Helper()
	return startCluster(t, cluster.Options{Nodes: nodes})
}

func startCluster(t *testing.T, o cluster.Options) (context.Context, *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	o.Bin, o.Progress = filepath.Join(root, "bin"), t.Logf
	c, err := cluster.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, c
}

// replica is one nomad-gpu-scheduler.
type replica struct {
	URL string
	API *api.Client // Nomad through the service
	// cmd, config and log are of a process that a test started, alloc of one
	// that Nomad runs.
	cmd         *exec.Cmd
	config, log string
	alloc       string
}

// launch says how to start a replica.
type launch struct {
	program string // empty is the one that was built
	nomad   string // address of Nomad
	token   string // the service's own
	config  string
	client  api.Config // of the replica's API; the address is filled in
}

// serve starts a replica beside the cluster's first server.
func serve(ctx context.Context, t *testing.T, c *cluster.Cluster, config string) *replica {
	t.Helper()
	return serveWith(ctx, t, c, launch{nomad: c.URL, config: config})
}

func serveWith(_ context.Context, t *testing.T, c *cluster.Cluster, l launch) *replica {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "scheduler.hcl")
	write(t, file, l.config)
	address := freeAddress(t)
	scheme := "http://"
	if l.client.TLSConfig != nil {
		scheme = "https://"
	}
	r := &replica{URL: scheme + address, config: file, log: filepath.Join(dir, "log")}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.cmd = exec.Command(cmp.Or(l.program, program), "serve", "-config", file, "-listen", address)
	r.cmd.Env = append(os.Environ(), "NOMAD_ADDR="+l.nomad, "NOMAD_TOKEN="+l.token)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.picture(t)
			describe(t, c.API)
		}
		r.kill(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("log of %s:\n%s", r.URL, r.said(t))
		}
	})
	l.client.Address = r.URL
	if r.API, err = api.NewClient(&l.client); err != nil {
		t.Fatal(err)
	}
	return r
}

// write makes or replaces a file that only its owner may read.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// said is the replica's log.
func (r *replica) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.log)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// picture logs what the service believes, without the GPUs' instances.
func (r *replica) picture(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // it may hang
	defer cancel()
	var picture map[string]any
	if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &picture, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		t.Log(err)
		return
	}
	for _, key := range []string{"at", "synced", "leader", "queues", "pending", "events"} {
		text, _ := json.Marshal(picture[key])
		t.Logf("%s: %s", key, text)
	}
}

// describe logs every alloc and every blocked evaluation.
func describe(t *testing.T, c *api.Client) {
	t.Helper()
	everywhere := &api.QueryOptions{Namespace: "*"}
	list, _, err := c.Allocations().List(everywhere)
	if err != nil {
		t.Log(err)
	}
	for _, a := range list {
		t.Logf("alloc %.8s of %s/%s on %s: %s, %s %s", a.ID, a.Namespace, a.JobID, a.NodeName, a.DesiredStatus, a.ClientStatus, a.DesiredDescription)
	}
	evals, _, err := c.Evaluations().List(everywhere)
	if err != nil {
		t.Log(err)
	}
	for _, e := range evals {
		if e.Status == "blocked" || e.Status == "pending" {
			for group, m := range e.FailedTGAllocs {
				t.Logf("%s evaluation %.8s of %s/%s group %s: exhausted %v, filtered %v", e.Status, e.ID, e.Namespace, e.JobID, group, m.DimensionExhausted, m.ConstraintFiltered)
			}
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := cluster.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// kill ends the replica; a second call does nothing.
func (r *replica) kill(signal syscall.Signal) {
	if r.cmd.ProcessState != nil {
		return
	}
	_ = r.cmd.Process.Signal(signal) // it may have ended by itself
	_ = r.cmd.Wait()                 // and then with any status
}

// job is a job that sleeps, with the meta of its only task.
type job struct {
	id, namespace, kind string
	priority, count     int
	meta                map[string]string
	devices             []*api.RequestedDevice
	image               string // runs in a container, as task "probe"
	seconds             int    // it ends by itself; 0: it does not
	update              *api.UpdateStrategy
}

func (j job) api() *api.Job {
	if j.kind == "" {
		j.kind = "service"
	}
	if j.count == 0 {
		j.count = 1
	}
	if j.priority == 0 {
		j.priority = 50
	}
	out := api.NewServiceJob(j.id, j.id, "global", j.priority)
	out.Type, out.Datacenters = &j.kind, []string{"*"}
	if j.namespace != "" {
		out.Namespace = &j.namespace
	}
	task := api.NewTask("sleep", "raw_exec")
	task.SetConfig("command", "sleep").SetConfig("args", []string{strconv.Itoa(cmp.Or(j.seconds, 100000))})
	if j.image != "" {
		task = api.NewTask("probe", "containerd").SetConfig("image", j.image)
	}
	cpu, memory, kill := 50, 20, time.Second
	task.Resources, task.Meta, task.KillTimeout = &api.Resources{CPU: &cpu, MemoryMB: &memory, Devices: j.devices}, j.meta, &kill
	group := api.NewTaskGroup("g", j.count).AddTask(task)
	zero := 0
	group.Update = j.update
	group.RestartPolicy = &api.RestartPolicy{Attempts: &zero}
	return out.AddTaskGroup(group)
}

// submit registers a job through a client.
func submit(ctx context.Context, to *api.Client, j job) error {
	_, _, err := to.Jobs().Register(j.api(), (&api.WriteOptions{}).WithContext(ctx))
	return err
}

// until repeats a check until it is satisfied or the context ends.
func until(ctx context.Context, t *testing.T, what string, limit time.Duration, check func() (bool, string)) time.Duration {
	t.Helper()
	begin, said := time.Now(), ""
	for time.Since(begin) < limit && ctx.Err() == nil {
		ok, state := check()
		if ok {
			return time.Since(begin)
		}
		said = state
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("%s: not within %s: %s", what, limit, said)
	return 0
}

// allocs lists a job's allocs that are not over.
func allocs(ctx context.Context, t *testing.T, c *api.Client, namespace, id string) []*api.AllocationListStub {
	t.Helper()
	q := (&api.QueryOptions{Namespace: namespace, Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	list, _, err := c.Jobs().Allocations(id, false, q)
	if err != nil {
		t.Fatal(err)
	}
	var live []*api.AllocationListStub
	for _, a := range list {
		if !cluster.Terminal(a) && a.DesiredStatus == "run" {
			live = append(live, a)
		}
	}
	return live
}

// runs waits until so many allocs of a job run.
func runs(ctx context.Context, t *testing.T, c *api.Client, id string, count int) []*api.AllocationListStub {
	t.Helper()
	return runsIn(ctx, t, c, "default", id, count)
}

func runsIn(ctx context.Context, t *testing.T, c *api.Client, namespace, id string, count int) []*api.AllocationListStub {
	t.Helper()
	var live []*api.AllocationListStub
	until(ctx, t, fmt.Sprintf("run %d of job %s", count, id), 3*time.Minute, func() (bool, string) {
		live = allocs(ctx, t, c, namespace, id)
		running := 0
		for _, a := range live {
			if a.ClientStatus == "running" {
				running++
			}
		}
		return running == count && len(live) == count, fmt.Sprintf("%d running, %d live", running, len(live))
	})
	return live
}

// doubleBooked looks through all allocs of the cluster for an instance that
// two hold.
func doubleBooked(ctx context.Context, t *testing.T, c *api.Client) {
	t.Helper()
	q := (&api.QueryOptions{Namespace: "*", Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	list, _, err := c.Allocations().List(q)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range twice(list) {
		t.Error(what)
	}
}

// twice tells of instances that two allocs hold.
func twice(list []*api.AllocationListStub) (found []string) {
	holder := map[string]string{}
	for _, a := range list {
		// A machine that comes back shows what it lost as pending for a moment, until it hears
		// that this is to stop: Nomad had given its room away before, and nothing of it starts.
		lost := a.DesiredStatus == api.AllocDesiredStatusStop && a.ClientStatus == api.AllocClientStatusPending
		if cluster.Terminal(a) || lost || a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					if other := holder[id]; other != "" {
						found = append(found, fmt.Sprintf("instance %s is held by %s and %s", id, other, a.ID))
					}
					holder[id] = a.ID
				}
			}
		}
	}
	return found
}

// record reads what the service recorded about a job, which it may still be about to do.
func record(ctx context.Context, t *testing.T, c *api.Client, job string) (out map[string]any) {
	t.Helper()
	until(ctx, t, "record the decision about "+job, 20*time.Second, func() (bool, string) {
		list, _, err := c.Variables().PrefixList("nomad-gpu/decisions", (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			full, _, err := c.Variables().Peek(v.Path, (&api.QueryOptions{}).WithContext(ctx))
			if err != nil || full == nil || full.Items["job"] != job {
				continue
			}
			if err := json.NewDecoder(bytes.NewReader([]byte(full.Items["record"]))).Decode(&out); err != nil {
				t.Fatal(err)
			}
			return true, ""
		}
		return false, fmt.Sprintf("%d decisions are recorded", len(list))
	})
	return out
}
