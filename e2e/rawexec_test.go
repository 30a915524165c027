// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Any driver gives its task the conventional variables of one device block.
func TestRawExecGetsItsShare(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	_, err := c.Run(ctx, fmt.Sprintf(`
job "raw" {
  group "group" {
    task "task" {
      driver = "raw_exec"
      config {
        command = %q
      }
      resources {
        cpu    = 100
        memory = 64
        device "nvidia/slice" {
          count = 8
        }
      }
    }
  }
}`, filepath.Join(root, "bin", "e2e", "gpuprobe")))
	if err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, "raw")
	if err != nil {
		t.Fatal(err)
	}
	r := report(t, ctx, c, alloc)
	var uuid string
	for id := range accounted(t, ctx, c, c.Nodes[0]) {
		uuid, _, _ = strings.Cut(id, "::")
	}
	if got := r.Env["NVIDIA_VISIBLE_DEVICES"]; got != uuid {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q, want %q", got, uuid)
	}
	if got := r.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; !strings.HasSuffix(got, "=8192M") {
		t.Errorf("the memory limit is %q", got)
	}
	if _, err := os.Stat(c.Nodes[0].Path(r.Env["CUDA_MPS_PIPE_DIRECTORY"])); err != nil {
		t.Errorf("the MPS pipe directory: %v", err)
	}
}
