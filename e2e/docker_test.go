// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// startDocker runs a node with a Docker engine and the device plugin's metrics, and
// returns where those are.
func startDocker(t *testing.T, count int, gpus string) (context.Context, *cluster.Cluster, string) {
	t.Helper()
	if _, err := cluster.DockerProgram(filepath.Join(root, "bin"), "dockerd"); err != nil {
		t.Skip(err)
	}
	address := freeAddress(t)
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, count), Docker: true,
		GPUs: gpus + fmt.Sprintf("\n    metrics {\n      address = %q\n    }\n", address)})
	err := c.Nodes[0].WaitNode(ctx, func(n *api.Node) bool { return n.Drivers["docker"] != nil && n.Drivers["docker"].Healthy })
	if err != nil {
		t.Fatal(err)
	}
	return ctx, c, "http://" + address + "/metrics"
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := cluster.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// mpsVolumes are what docs/device.md tells authors of docker and podman jobs to write.
const mpsVolumes = `
        volumes = ["${CUDA_MPS_PIPE_DIRECTORY}:${CUDA_MPS_PIPE_DIRECTORY}",
                   "${CUDA_MPS_SHM_DIRECTORY}:/dev/shm"]
`

// docker is a job with one docker task.
func (j jobSpec) docker() string {
	j.config += "\n        network_mode = \"none\"\n"
	return strings.Replace(j.hcl(), `driver = "containerd"`, `driver = "docker"`, 1)
}

func runDocker(t *testing.T, ctx context.Context, c *cluster.Cluster, j jobSpec) *api.Allocation {
	t.Helper()
	if _, err := c.Run(ctx, j.docker()); err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, j.id)
	if err != nil {
		t.Fatal(err)
	}
	return alloc
}

// heldOf is the GPU of which Nomad's account says that an allocation holds it.
func heldOf(t *testing.T, ctx context.Context, c *cluster.Cluster, alloc *api.Allocation) string {
	t.Helper()
	for id, holder := range accounted(t, ctx, c, nodeOf(t, c, alloc)) {
		if holder == alloc.ID {
			uuid, _, _ := strings.Cut(id, "::")
			return uuid
		}
	}
	t.Fatalf("by Nomad's account alloc %s of job %s holds no GPU", alloc.ID, alloc.JobID)
	return ""
}

// What docs/any-driver.md says of docker, on a real engine with NVIDIA's runtime.
func TestDockerTasksHaveTheirShare(t *testing.T) {
	t.Parallel()
	ctx, c, metrics := startDocker(t, 2, sliced)
	whole := runDocker(t, ctx, c, jobSpec{id: "whole", devices: slicesOf(79)})
	alloc := runDocker(t, ctx, c, jobSpec{id: "share", devices: slicesOf(8), config: mpsVolumes})
	plain := runDocker(t, ctx, c, jobSpec{id: "plain"})

	r := report(t, ctx, c, alloc)
	theirs := report(t, ctx, c, whole)
	if open := r.Opens(); len(open) != 1 || slices.Equal(open, theirs.Opens()) {
		t.Errorf("the task opens GPUs %v, its neighbor %v; want one each", open, theirs.Opens())
	}
	if theirs.MemoryLimit != "" || len(theirs.Opens()) != 1 {
		t.Errorf("with all slices of a GPU, a task opens GPUs %v with the limit %q", theirs.Opens(), theirs.MemoryLimit)
	}
	if open := report(t, ctx, c, plain).Opens(); len(open) != 0 {
		t.Errorf("a task without a device block, whose image asks for all GPUs, opens %v", open)
	}
	uuid := heldOf(t, ctx, c, alloc)
	for key, want := range map[string]string{"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "11"} {
		if got := r.Env[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	pid := containerPID(t, ctx, c.Nodes[0], alloc)
	checkMPSMounts(t, c.Nodes[0], pid, r.Env)
	checkMeasured(t, ctx, c, alloc, pid, metrics)
}

// containerPID finds, as the host counts, the process of an allocation's container.
func containerPID(t *testing.T, ctx context.Context, n *cluster.Node, alloc *api.Allocation) int {
	t.Helper()
	for {
		pids, err := n.PIDs("/bin/gpuprobe")
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err == nil && strings.HasPrefix(processName(pid), "gpuprobe") && strings.Contains(string(environ), "NOMAD_ALLOC_ID="+alloc.ID) {
				return pid
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("no process of alloc %s is found", alloc.ID)
		}
	}
}

// processName is empty for a process that has ended.
func processName(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return string(name)
}

// checkMPSMounts fails unless a container sees its daemon's socket and shared memory.
func checkMPSMounts(t *testing.T, n *cluster.Node, pid int, env map[string]string) {
	t.Helper()
	inside := fmt.Sprintf("/proc/%d/root", pid)
	info, err := os.Stat(filepath.Join(inside, env["CUDA_MPS_PIPE_DIRECTORY"], "control"))
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("the daemon's socket in the container: %v, %v", info, err)
	}
	var theirs, ours syscall.Stat_t
	if err := syscall.Stat(inside+"/dev/shm", &theirs); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Stat(n.Path(env["CUDA_MPS_SHM_DIRECTORY"]), &ours); err != nil {
		t.Fatal(err)
	}
	if theirs.Dev != ours.Dev || theirs.Ino != ours.Ino {
		t.Errorf("the container's /dev/shm is another than the daemon's %s", env["CUDA_MPS_SHM_DIRECTORY"])
	}
}

// checkMeasured fails unless a task of another driver appears in statistics and
// metrics, and a process that is no task's is counted apart.
func checkMeasured(t *testing.T, ctx context.Context, c *cluster.Cluster, alloc *api.Allocation, hostPID int, metrics string) {
	t.Helper()
	pid, err := pidInMachine(hostPID)
	if err != nil {
		t.Fatal(err)
	}
	uuid := heldOf(t, ctx, c, alloc)
	const nobodys = 1 // the machine's first process is no task
	err = sim.Update(c.Nodes[0].SimDir(), uuid, func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: uint32(pid), MemoryMiB: 1234, MPS: true}, {PID: nobodys, MemoryMiB: 77}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := waitStats(t, ctx, c, alloc, "Task memory", 1234)["Task"]; got == nil || !strings.HasPrefix(*got.StringVal, alloc.JobID+"/task") {
		t.Errorf("the statistics are those of %+v", got)
	}
	if got, want := metric(t, ctx, metrics, "nomad_gpu_task_memory_used_bytes", uuid, alloc.ID), fmt.Sprint(float64(1234<<20)); got != want {
		t.Errorf("the metric of the task's memory is %q, want %q", got, want)
	}
	if got := metric(t, ctx, metrics, "nomad_gpu_foreign_processes", uuid); got != "1" {
		t.Errorf("there are %q processes that are no task's, want 1", got)
	}
}

// metric is the value of the only series that has all the label values.
func metric(t *testing.T, ctx context.Context, url, name string, labels ...string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(series, name+"{") && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, fmt.Sprintf("=%q", l)) }) {
			return value
		}
	}
	t.Errorf("no series %s of %q in\n%s", name, labels, text)
	return ""
}

// What docs/any-driver.md warns of: NVIDIA's runtime goes by the container's
// environment, which is the job author's. Where the plugin's specs are used, a GPU
// must be named; a task's env block cannot, since Nomad puts the device's variables
// above it.
func TestDockerJobsReachTheGPUsThatTheyName(t *testing.T) {
	t.Parallel()
	ctx, c, _ := startDocker(t, 2, sliced)
	neighbor := runDocker(t, ctx, c, jobSpec{id: "neighbor", devices: slicesOf(79)})
	theirs, uuid := report(t, ctx, c, neighbor).Opens(), heldOf(t, ctx, c, neighbor)
	env := func(value string) string { return fmt.Sprintf("env {\n NVIDIA_VISIBLE_DEVICES = %q\n}\n", value) }
	template := "template {\n destination = \"local/env\"\n env = true\n data = \"NVIDIA_VISIBLE_DEVICES=" + uuid + "\"\n}\n"
	for id, row := range map[string]struct {
		job     jobSpec
		reaches bool
	}{
		"own":                 {jobSpec{devices: slicesOf(8), config: mpsVolumes, task: env("all")}, false},
		"named-in-env":        {jobSpec{devices: slicesOf(8), config: mpsVolumes, task: env(uuid)}, false},
		"named-in-a-template": {jobSpec{devices: slicesOf(8), config: mpsVolumes, task: template}, true},
		"without-a-device":    {jobSpec{config: `runtime = "nvidia"`, task: env(uuid)}, true},
	} {
		row.job.id = id
		open := report(t, ctx, c, runDocker(t, ctx, c, row.job)).Opens()
		if len(open) != 1 || slices.Equal(open, theirs) != row.reaches {
			t.Errorf("%s: opens GPUs %v, its neighbor has %v; reaches it should be %v", id, open, theirs, row.reaches)
		}
	}
	if _, err := c.Run(ctx, jobSpec{id: "all", config: `runtime = "nvidia"`, task: noRestart}.docker()); err != nil {
		t.Fatal(err)
	}
	if alloc, _, err := c.Settled(ctx, "all"); alloc != nil || err == nil || !strings.Contains(err.Error(), "unresolvable CDI devices nomad-gpu/nvidia=all") {
		t.Errorf("a task whose image asks for all GPUs: %v, %v", alloc, err)
	}
}
