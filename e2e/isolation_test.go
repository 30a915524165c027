// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
)

// The image asks for all GPUs (cluster.Image), and so do the job's environment
// and a template. The forged reservation names the neighbor's slices.
const hostile = `
      env {
        NVIDIA_VISIBLE_DEVICES            = "all"
        NVIDIA_DRIVER_CAPABILITIES        = "all"
        CUDA_VISIBLE_DEVICES              = "0,1"
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT  = "0=81920M"
        NOMAD_GPU_00000000_0              = "{\"v\":1,\"vendor\":\"nvidia\",\"devices\":[{\"uuid\":\"%[1]s\",\"mode\":\"whole\"}]}"
      }
      template {
        destination = "local/more.env"
        env         = true
        data        = <<EOT
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100
CUDA_MPS_PIPE_DIRECTORY=/tmp/none
NVIDIA_VISIBLE_DEVICES=%[1]s
NOMAD_GPU_11111111_0={"v":1,"vendor":"nvidia","devices":[{"uuid":"%[1]s","mode":"whole"}]}
EOT
      }
`

func TestContainerHasExactlyItsShare(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	neighbor := run(t, ctx, c, jobSpec{id: "neighbor", devices: slicesOf(79)})
	theirs := report(t, ctx, c, neighbor).Opens()
	alloc := run(t, ctx, c, jobSpec{
		id: "hostile", devices: slicesOf(8),
		config: "gpu {\n memory = \"7GiB\"\n compute_limit = 300\n}",
		task:   fmt.Sprintf(hostile, onlyGPU(t, c, neighbor)),
	})
	inside := map[string]probe.Report{"task": report(t, ctx, c, alloc)}
	session, err := c.ExecReport(ctx, alloc, "task")
	if err != nil {
		t.Fatal(err)
	}
	inside["exec session"] = session
	for where, r := range inside {
		if open := r.Opens(); len(open) != 1 || slices.Equal(open, theirs) {
			t.Errorf("%s: opens GPUs %v, the neighbor has %v", where, open, theirs)
		}
		if len(r.Forged) != 16 {
			t.Errorf("%s: tried %d GPUs, want 16", where, len(r.Forged))
		}
		want := map[string]string{
			"NVIDIA_VISIBLE_DEVICES":            "void",
			"CUDA_MPS_PIPE_DIRECTORY":           "/run/nomad-gpu/mps/pipe",
			"CUDA_MPS_LOG_DIRECTORY":            "/run/nomad-gpu/mps/log",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":  "0=7168M",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
		}
		if !maps.Equal(r.Env, want) {
			t.Errorf("%s: environment is %v, want %v", where, r.Env, want)
		}
	}
}

func TestWithoutADeviceBlockThereIsNoGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	neighbor := run(t, ctx, c, jobSpec{id: "neighbor", devices: slicesOf(8)})
	for id, task := range map[string]string{"plain": "", "hostile": fmt.Sprintf(hostile, onlyGPU(t, c, neighbor))} {
		r := report(t, ctx, c, run(t, ctx, c, jobSpec{id: id, task: task}))
		if open := r.Opens(); len(open) != 0 || len(r.Nodes) != 0 {
			t.Errorf("%s: opens GPUs %v, has nodes %v", id, open, r.Nodes)
		}
		if want := (map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}); !maps.Equal(r.Env, want) {
			t.Errorf("%s: environment is %v, want %v", id, r.Env, want)
		}
	}
}
