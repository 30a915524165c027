// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// shared has slices under MPS on the first GPU, and seats on the second.
const shared = `
gpu {
  index   = 0
  mode    = "slice"
  sharing = "mps"
}
gpu {
  index    = 1
  mode     = "shared"
  sharing  = "suspend"
  replicas = 5
}
suspend {
  host_memory  = "400GiB"
  min_turn     = "1s"
  idle         = "1h"
}
health { measure = "300ms" }
`

// hostJob is a job of a driver that runs programs of the host; its parts are HCL.
func hostJob(id, driver, config, task, devices string) string {
	return fmt.Sprintf(`
job %q {
  group "group" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "task" {
      driver = %q
      config {
        %s
      }
      %s
      %s
      resources {
        cpu    = 100
        memory = 64
        %s
      }
    }
  }
}`, id, driver, config, task, noRestart, devices)
}

// Tasks of every driver that leave the variables of MPS out, or forge them, on the newest
// containerd. What they find is what docs/any-driver.md says.
func TestTasksThatForgeTheirShare(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, cluster.Options{
		Containerd: filepath.Join(root, "bin", "e2e", "containerd"),
		Nodes:      []cluster.NodeOptions{{Topology: h100(t, 2), MPS: "host_shm = true", GPUs: shared}},
	})
	probe := filepath.Join(root, "bin", "e2e", "gpuprobe")
	const forged = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT = \"0=80000M\"\nCUDA_MPS_ACTIVE_THREAD_PERCENTAGE = \"100\"\nCUDA_MPS_PIPE_DIRECTORY = \"/nowhere\"\n"
	template := "template {\n destination = \"local/env\"\n env = true\n data = <<EOT\n" + strings.ReplaceAll(strings.ReplaceAll(forged, " = ", "="), "\"", "") + "EOT\n}\n"
	leaves := fmt.Sprintf("command = \"/usr/bin/env\"\nargs = [\"-u\", \"CUDA_MPS_PIPE_DIRECTORY\", \"-u\", \"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\", %q]", probe)
	for id, job := range map[string]string{
		"victim":   jobSpec{id: "victim", devices: slicesOf(8), group: restartsAtOnce}.hcl(),
		"env":      hostJob("env", "raw_exec", fmt.Sprintf("command = %q", probe), "env {\n"+forged+"}", slicesOf(4)),
		"template": hostJob("template", "raw_exec", fmt.Sprintf("command = %q", probe), template, slicesOf(4)),
		"leaves":   hostJob("leaves", "raw_exec", leaves, "", slicesOf(4)),
		"exec":     hostJob("exec", "exec", "command = \"/bin/gpuprobe\"", "", slicesOf(4)),
		"seat":     hostJob("seat", "raw_exec", fmt.Sprintf("command = %q", probe), "env {\n GPU_REFUSED = \"\"\n CUDA_VISIBLE_DEVICES = \"0\"\n}", oneSeat),
		"ours":     jobSpec{id: "ours", devices: slicesOf(4), task: "env {\n" + forged + "GPU_SELF_SOCKET = \"/run/other\"\n}\n" + template}.hcl(),
	} {
		if _, err := c.Run(ctx, job); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	for id, want := range map[string]struct{ memory, pipe string }{
		"victim":   {"0=8192M", "/run/nomad-gpu/mps/pipe"},
		"ours":     {"0=4096M", "/run/nomad-gpu/mps/pipe"},
		"env":      {"0=4096M", "/run/nomad-gpu/mps/GPU-"}, // Nomad sets the device's variables last
		"template": {"0=80000M", "/nowhere"},
		"leaves":   {"", ""},
		"exec":     {"0=4096M", "/run/nomad-gpu/mps/GPU-"},
		"seat":     {"", ""},
	} {
		alloc, err := c.Running(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		r := report(t, ctx, c, alloc)
		if pipe := r.Env["CUDA_MPS_PIPE_DIRECTORY"]; r.MemoryLimit != want.memory || !strings.HasPrefix(pipe, want.pipe) || want.pipe == "" && pipe != "" {
			t.Errorf("%s has the variables %v", id, r.Env)
		}
		switch open := r.Opens(); {
		case id == "exec" && len(open) != 0, (id == "victim" || id == "ours") && !slices.Equal(open, []int{0}):
			t.Errorf("%s opens GPUs %v", id, open)
		}
		if id == "seat" && (r.Env["CUDA_VISIBLE_DEVICES"] != "void" || r.Env["NVIDIA_VISIBLE_DEVICES"] != "void") {
			t.Errorf("a raw_exec task with a seat sees %v", r.Env)
		}
	}
}
