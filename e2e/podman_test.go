// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// podman is how a machine's tasks call podman: with storage of their own, no
// network, and control groups that go with the machine.
func podman(n *cluster.Node) string {
	return "podman --root " + n.Dir("podman") + " --runroot /run/podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime runc"
}

// What docs/any-driver.md says of podman: its CDI devices by the names of the
// plugin's specs, and the mounts. nomad-driver-podman hands both to podman as they
// stand; here a raw_exec task does, since that driver is no Go module that can be had.
func TestPodmanTasksHaveTheirShare(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("podman is not installed (e2e/prepare tests does)")
	}
	address := freeAddress(t)
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced + fmt.Sprintf("\n    metrics {\n      address = %q\n    }\n", address)})
	n := c.Nodes[0]
	preparePodman(t, ctx, n)
	alloc, neighbor := runPodman(t, ctx, c, "share", 8, ""), runPodman(t, ctx, c, "whole", 79, "")
	r, theirs := report(t, ctx, c, alloc), report(t, ctx, c, neighbor)
	if open := r.Opens(); len(open) != 1 || slices.Equal(open, theirs.Opens()) {
		t.Errorf("the task opens GPUs %v, its neighbor %v; want one each", open, theirs.Opens())
	}
	if got := r.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; got != "0=8192M" || theirs.MemoryLimit != "" {
		t.Errorf("the memory limit is %q, that of the task with all slices %q", got, theirs.MemoryLimit)
	}
	pid := containerPID(t, ctx, n, alloc)
	checkMPSMounts(t, n, pid, r.Env)
	checkMeasured(t, ctx, c, alloc, pid, "http://"+address+"/metrics")
}

// preparePodman imports the image, and links the plugin's spec to where podman looks.
func preparePodman(t *testing.T, ctx context.Context, n *cluster.Node) {
	t.Helper()
	layer, changes, err := cluster.ImageImport(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	argv := slices.Concat(strings.Fields(podman(n)), []string{"import"}, changes, []string{"-", cluster.Image})
	if _, err := n.Command(ctx, bytes.NewReader(layer), argv...); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.Path("/run/cdi"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run/nomad-gpu/cdi/nomad-gpu-nvidia.json", n.Path("/run/cdi/nomad-gpu-nvidia.json")); err != nil {
		t.Fatal(err)
	}
}

// runPodman has podman run the image, or what stands in its place, in a container of the job's name.
func runPodman(t *testing.T, ctx context.Context, c *cluster.Cluster, id string, count int, command string) *api.Allocation {
	t.Helper()
	mounts := ""
	if count < 79 { // all slices of a GPU need no daemon
		mounts = `--volume "$CUDA_MPS_PIPE_DIRECTORY:$CUDA_MPS_PIPE_DIRECTORY" --volume "$CUDA_MPS_SHM_DIRECTORY:/dev/shm"`
	}
	// Podman itself is the task: it hands on the signals that end it.
	script := "exec " + podman(c.Nodes[0]) + ` run --rm --name ` + id + ` --network none --cap-add mknod --cgroup-parent /` + c.Nodes[0].TaskCgroup() +
		" --ulimit nofile=1024:1024 --ulimit nproc=1024:1024" + // its defaults need CAP_SYS_RESOURCE
		` --env 'NOMAD_*' --env 'CUDA_*' --env 'NVIDIA_*' --device "nomad-gpu/nvidia=$NVIDIA_VISIBLE_DEVICES" ` + mounts + " "
	if entrypoint, args, given := strings.Cut(command, " "); given {
		script += "--entrypoint " + entrypoint + " " + cluster.Image + " " + args
	} else {
		script += cluster.Image
	}
	if _, err := c.Run(ctx, fmt.Sprintf(`
job %q {
  group "group" {
    task "task" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["local/run"]
      }
      template {
        destination = "local/run"
        data        = <<EOT
%s
EOT
      }
      %s
      resources {
        cpu    = 100
        memory = 64
        %s
      }
    }
  }
}`, id, script, noRestart, slicesOf(count))); err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return alloc
}

// A podman task, root in its container, attacks the gate of its GPU's daemon as one of docker's does
// (TestADockerTaskThatAttacksTheGate). Then one mounts the socket of a neighbor of our driver's, and
// begins with the neighbor's environment: it is refused.
func TestAPodmanTaskThatAttacksItsNeighbors(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("podman is not installed (e2e/prepare tests does)")
	}
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	n := c.Nodes[0]
	preparePodman(t, ctx, n)
	ours := run(t, ctx, c, jobSpec{id: "ours", devices: slicesOf(8)})
	runPodman(t, ctx, c, "theirs", 8, "")
	attackGate(t, ctx, c, func() ([]byte, error) {
		return c.Exec(ctx, ours, "task", "/bin/mps-client", "introduce", "20")
	}, func() ([]byte, error) {
		return n.Command(ctx, nil, append(strings.Fields(podman(n)), "exec", "theirs", "/bin/mps-client", "introduce", "20")...)
	}, func(attack string) *api.Allocation {
		return runPodman(t, ctx, c, attack, 4, "/bin/mps-client "+attack)
	})

	sockets, err := filepath.Glob(n.Path("/run/nomad-gpu/self/*" + ours.ID[:8] + "*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the sockets of the neighbor are in %v, %v", sockets, err)
	}
	alias := append(strings.Fields(podman(n)), "run", "--rm", "--network", "none", "--cgroup-parent", "/"+n.TaskCgroup(), "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		"--env", "NOMAD_ALLOC_ID="+ours.ID, "--env", "NOMAD_TASK_NAME=task", "--volume", "/run/nomad-gpu/self/"+filepath.Base(sockets[0])+":/run/nomad-gpu",
		"--volume", filepath.Join(root, "bin", "nomad-gpu-self")+":/self:ro", "--entrypoint", "/self", cluster.Image, "status")
	if out, err := n.Command(ctx, nil, alias...); err == nil || !strings.Contains(string(out)+err.Error(), "is not the task's: it is not in the task's control group") {
		t.Errorf("a stranger at the neighbor's socket is told %q, %v", out, err)
	}
	self(t, ctx, c, ours, "8G", "status")
}
