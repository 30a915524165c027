// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// The images that the example and the answers of the API name.
const (
	rankImage       = "docker.io/library/python:3.12-slim"
	pytorchImage    = "docker.io/pytorch/pytorch:latest"
	tensorflowImage = "docker.io/tensorflow/tensorflow:latest-gpu"
)

// TestFrameworks runs the example of a distributed training, and what
// setup-pytorch and setup-tensorflow answer, in containers.
func TestFrameworks(t *testing.T) {
	t.Parallel()
	images := [][]byte{
		pythonImage(t.Context(), t, rankImage, ""),
		pythonImage(t.Context(), t, pytorchImage, environment),
		pythonImage(t.Context(), t, tensorflowImage, environment),
	}
	ctx, c := startWith(t, 1, cluster.Options{Images: images})
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	for _, kind := range []string{"pytorch", "tensorflow"} {
		t.Run(kind, func(t *testing.T) {
			findEachOther(ctx, t, c, r, kind)
			setUp(ctx, t, c, r, kind)
		})
	}
	t.Run("a rank waits for its master", func(t *testing.T) { waitForMaster(ctx, t, c) })
	doubleBooked(ctx, t, c.API)
}

// findEachOther runs the example as it stands, but for the framework and for a
// line with the environment before the sum.
func findEachOther(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica, kind string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples", "service", "distributed.nomad.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	id := "distributed-" + kind
	file := filepath.Join(t.TempDir(), "job.hcl")
	const work = "          rank, world, _, _ = ranks()\n"
	write(t, file, strings.NewReplacer(
		`job "distributed"`, fmt.Sprintf("job %q", id), `= "pytorch"`, fmt.Sprintf("= %q", kind),
		work, "          print(json.dumps(dict(os.environ)), flush=True)\n"+work).Replace(string(text)))
	if code, out := nomad(ctx, t, r.URL, "job", "run", "-detach", file); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	done := ended(ctx, t, c, id, 2)
	held := map[string]bool{}
	for _, a := range done {
		rank := a.Name[len(a.Name)-2 : len(a.Name)-1]
		line, rest, _ := bytes.Cut(output(ctx, t, c, a, "rank"), []byte("\n"))
		if want := fmt.Sprintf("rank %s of 2: sum 3\n", rank); string(rest) != want {
			t.Errorf("alloc %s said %q, want %q", a.Name, rest, want)
		}
		env, err := environmentOf(line)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"NCCL_SOCKET_IFNAME": "^lo,docker,nomad,veth,cni", "GPU_MEMORY_FRACTION": "0.95", "GPU_MIXED_PRECISION": "fp16"}
		if kind == "pytorch" {
			want["RANK"], want["WORLD_SIZE"], want["LOCAL_RANK"], want["MASTER_ADDR"] = rank, "2", "0", "127.0.0.1"
			want["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.95"
		} else if !strings.Contains(env["TF_CONFIG"], `"index":`+rank) || strings.Count(env["TF_CONFIG"], "127.0.0.1:") != 2 {
			t.Errorf("TF_CONFIG is %s", env["TF_CONFIG"])
		}
		if wrong := differences(env, want); wrong != "" {
			t.Errorf("rank %s: %s", rank, wrong)
		}
		held[leased(t, c, a.ID, "rank").UUID] = true
		if restarts := a.TaskStates["rank"].Restarts; restarts != 0 {
			t.Errorf("rank %s was restarted %d times", rank, restarts)
		}
	}
	if len(held) != 2 {
		t.Errorf("two ranks hold the GPUs %v, want one each", held)
	}
}

// ended waits until so many allocs of a job have done their work.
func ended(ctx context.Context, t *testing.T, c *cluster.Cluster, job string, count int) []*api.AllocationListStub {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done, err := c.WaitAllocs(ctx, job, "to end", func(a *api.AllocationListStub) bool { return a.ClientStatus == api.AllocClientStatusComplete }, count)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// output is all that a task printed.
func output(ctx context.Context, t *testing.T, c *cluster.Cluster, a *api.AllocationListStub, task string) []byte {
	t.Helper()
	file, err := c.API.AllocFS().Cat(&api.Allocation{ID: a.ID, NodeID: a.NodeID}, "alloc/logs/"+task+".stdout.0", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// setUp asks how to set a framework up, runs the fragment that is the answer, and
// compares the task's environment with the one that was promised.
func setUp(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica, kind string) {
	t.Helper()
	var answer struct {
		Environment map[string]string `json:"environment"`
		JobFragment string            `json:"job_fragment"`
		Error       string            `json:"error"`
	}
	body := `{"request":"4G,0.25","memory_mode":"aggressive","mixed_precision":true}`
	if status := r.call(ctx, t, "POST", "/api/v1/gpu/setup-"+kind, body, &answer); status != 200 {
		t.Fatalf("status %d: %s", status, answer.Error)
	}
	file := filepath.Join(t.TempDir(), "job.hcl")
	write(t, file, "job \"train\" {\n"+answer.JobFragment+"}\n")
	if code, out := nomad(ctx, t, r.URL, "job", "run", "-detach", file); code != 0 {
		t.Fatalf("exit %d:\n%s\n%s", code, out, answer.JobFragment)
	}
	alloc, err := c.Running(ctx, "train")
	if err != nil {
		t.Fatal(err)
	}
	line, err := c.FirstLine(ctx, alloc, "train")
	if err != nil {
		t.Fatal(err)
	}
	env, err := environmentOf(line)
	if err != nil {
		t.Fatal(err)
	}
	answer.Environment["PYTHONPATH"] = strings.Replace(answer.Environment["PYTHONPATH"], "${NOMAD_TASK_DIR}", "/local", 1)
	if wrong := differences(env, answer.Environment); wrong != "" || len(answer.Environment) < 4 {
		t.Errorf("%d variables were promised: %s", len(answer.Environment), wrong)
	}
	if holding := leased(t, c, alloc.ID, "train"); holding.GuaranteeMilli != 250 || len(holding.Slices) != 4 {
		t.Errorf("the task holds %+v, want four slices and a quarter", holding)
	}
	if err := c.Stop(ctx, "train"); err != nil {
		t.Fatal(err)
	}
}

// waitForMaster registers the example's second half alone, as the service
// admitted it: its template waits, and goes on when the master appears.
func waitForMaster(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	job, _, err := c.API.Jobs().Info("distributed-pytorch", nil)
	if err != nil {
		t.Fatal(err)
	}
	lonely, one := "lonely", 1
	group := job.TaskGroups[0]
	job.ID, job.Name, group.Count = &lonely, &lonely, &one
	group.Tasks[0].Env["WORLD_SIZE"] = "1"
	tags := group.Services[0].Tags
	group.Services[0].Tags = []string{"rank-7"}
	register := func() {
		t.Helper()
		if _, _, err := c.API.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
	}
	register()
	until(ctx, t, "say that the template misses something", time.Minute, func() (bool, string) {
		for _, a := range allocs(ctx, t, c.API, "default", lonely) {
			state := a.TaskStates["rank"]
			if state != nil && slices.ContainsFunc(state.Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, "Missing") }) {
				return true, ""
			}
		}
		return false, "no task event says so"
	})
	group.Services[0].Tags = tags
	register()
	done := ended(ctx, t, c, lonely, 1)
	if said := output(ctx, t, c, done[0], "rank"); !strings.HasSuffix(string(said), "rank 0 of 1: sum 1\n") {
		t.Errorf("it said %q", said)
	}
}
