// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A task on a quarter of a GPU that may use four fifths of its multiprocessors, and whose
// author claims more. Its program tries all ways out of its namespace.
const claims = `
      meta {
        gpu_limit = "0.8"
      }
      env {
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE = "100"
        CUDA_MPS_SM_PARTITION             = "GPU-x/y"
      }
      template {
        data        = "CUDA_MPS_CLIENT_PRIORITY=0\nCUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=900G\n"
        destination = "local/env"
        env         = true
      }
`

const hostileArgs = `args = ["hostile"]`

// v3Tasks are such tasks, by their drivers.
func v3Tasks() map[string]string {
	j := jobSpec{devices: slicesOf(19), task: claims, group: startsAgain}
	containerd, docker := j, j
	containerd.id, docker.id = "containerd", "docker"
	containerd.config = "entrypoint = [\"/bin/mps-client\"]\n" + hostileArgs + "\ngpu {\n compute = 250\n compute_limit = 800\n}\n"
	docker.config = "entrypoint = [\"/bin/mps-client\"]\n" + hostileArgs + mpsVolumes
	host := func(driver, command, group, task string) string {
		h := jobSpec{id: driver, devices: slicesOf(19), task: claims + task, group: startsAgain + group, config: fmt.Sprintf("command = %q\n%s\n", command, hostileArgs)}
		text := strings.Replace(h.hcl(), `driver = "containerd"`, fmt.Sprintf("driver = %q", driver), 1)
		return strings.Replace(text, fmt.Sprintf("image = %q", cluster.Image), "", 1)
	}
	return map[string]string{
		"containerd": containerd.hcl(),
		"docker":     docker.docker(),
		"raw_exec":   host("raw_exec", filepath.Join(root, "bin", "e2e", "mps-client"), "", ""),
		"exec": host("exec", "/programs/mps-client", `
    volume "mps" {
      type   = "host"
      source = "nomad-gpu-mps"
    }
    volume "programs" {
      type      = "host"
      source    = "programs"
      read_only = true
    }
`, `
      volume_mount {
        volume      = "mps"
        destination = "/run/nomad-gpu/mps"
      }
      volume_mount {
        volume      = "programs"
        destination = "/programs"
        read_only   = true
      }
`),
	}
}

// startsAgain has a task start again at once, as it must when its daemon is lost.
const startsAgain = `
    restart {
      attempts = 1000
      interval = "1h"
      delay    = "0s"
      mode     = "delay"
    }
`

// v3Node is a node of four drivers with MPS v3.
func v3Node(t *testing.T, branch string) (context.Context, *cluster.Cluster) {
	t.Helper()
	if _, err := cluster.DockerProgram(filepath.Join(root, "bin"), "dockerd"); err != nil {
		t.Skip(err)
	}
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), Docker: true, MPSBranch: branch,
		GPUs: sliced + "    compute_burst = 800\n"})
	err := c.Nodes[0].WaitNode(ctx, func(n *api.Node) bool {
		for _, name := range []string{"containerd", "docker", "raw_exec", "exec"} {
			if n.Drivers[name] == nil || !n.Drivers[name].Healthy {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, c
}

// v3Daemon is the daemon of a GPU, once the device plugin has it.
func v3Daemon(ctx context.Context, t *testing.T, n *cluster.Node, uuid string) gpu.MPSState {
	t.Helper()
	for {
		dir, err := n.State()
		if err != nil {
			t.Fatal(err)
		}
		s, err := dir.GPU(uuid)
		if err == nil && s.MPS != nil && s.MPS.Ready && s.MPS.Protocol == 3 {
			return *s.MPS
		}
		if ctx.Err() != nil {
			t.Fatalf("GPU %s has no daemon of MPS v3: %+v, %v", uuid, s.MPS, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// namespacesOf asks the daemon of a GPU, within the machine, for the namespaces of tasks.
func namespacesOf(ctx context.Context, t *testing.T, n *cluster.Node, uuid string) []string {
	t.Helper()
	s := v3Daemon(ctx, t, n, uuid)
	out, err := n.Command(ctx, nil, "env", "CUDA_MPS_PIPE_DIRECTORY="+s.CommandDir(), s.Control, "-p", "3", "namespace", "list", "--server="+gpu.MPSServer, "--format=csv,noheader")
	if err != nil {
		return nil // the daemon is being replaced
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if name, _, _ := strings.Cut(line, ","); name != "default" {
			names = append(names, name)
		}
	}
	return names
}

// waitNamespaces waits until a GPU's daemon has so many namespaces of tasks.
func waitNamespaces(ctx context.Context, t *testing.T, n *cluster.Node, uuid string, want int) {
	t.Helper()
	for {
		names := namespacesOf(ctx, t, n, uuid)
		if len(names) == want {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the namespaces are %v, not %d", names, want)
		}
	}
}

// hostileTask is a task whose program tries all ways out of its namespace.
type hostileTask struct {
	alloc *api.Allocation
	own   string // namespace
}

// startHostile runs such a task, and fails unless its program is in one namespace whatever it
// tries, with its limits, or has no GPU.
func startHostile(ctx context.Context, t *testing.T, c *cluster.Cluster, job, text, multiprocessors string) hostileTask {
	t.Helper()
	if _, err := c.Run(ctx, text); err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	line, err := c.FirstLine(ctx, alloc, "task")
	var said map[string]string
	if err == nil {
		err = json.Unmarshal(line, &said)
	}
	if err != nil {
		t.Fatalf("%s: %q: %v", job, line, err)
	}
	own, _, _ := strings.Cut(said["plain"], " ")
	for guise, answers := range said {
		want := own + " " + multiprocessors + " CUDA_ERROR_OUT_OF_MEMORY ok"
		if slices.Contains([]string{"no MPS", "default", "server"}, guise) {
			want = "error: no server"
		}
		if answers != want {
			t.Errorf("%s, %s: %q, not %q", job, guise, answers, want)
		}
	}
	t.Logf("%s is in %s, in %d guises", job, own, len(said))
	return hostileTask{alloc, own}
}

// output is what a task has printed.
func output(ctx context.Context, t *testing.T, c *cluster.Cluster, alloc *api.Allocation) string {
	t.Helper()
	return nomad(t, ctx, c, "alloc", "logs", alloc.ID, "task")
}

// checkHistory fails where a program of the task was in two namespaces, or in another task's.
func (h hostileTask) checkHistory(ctx context.Context, t *testing.T, c *cluster.Cluster, owners map[string]string) {
	t.Helper()
	now := ""
	for line := range strings.Lines(output(ctx, t, c, h.alloc)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "{") && strings.Contains(line, "plain") {
			now = "" // it has started again
		}
		where, found := strings.CutPrefix(line, "in ")
		if !found || where == "" {
			continue
		}
		if now != "" && now != where {
			t.Errorf("%s: a program was in %s and in %s", h.alloc.JobID, now, where)
		}
		if by := owners[where]; by != "" && by != h.alloc.JobID {
			t.Errorf("%s was in %s, which is the namespace of %s", h.alloc.JobID, where, by)
		}
		now, owners[where] = where, h.alloc.JobID
	}
}

// killOne kills one of a node's processes, by its name.
func killOne(t *testing.T, n *cluster.Node, words ...string) {
	t.Helper()
	pids, err := n.PIDs(words...)
	if err != nil || len(pids) == 0 {
		t.Fatalf("processes of %v are %v, %v", words, pids, err)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// daemonKills is how often a daemon is killed under the tasks.
func daemonKills() int {
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		return 40
	}
	return 2
}

// pluginSteps are commands to a daemon at which the plugin that gives them is killed: the driver
// makes a task's namespace with four. One is drawn, or all are taken with NOMAD_GPU_FULL.
func pluginSteps() (all []string) {
	for n := range 6 {
		all = append(all, fmt.Sprint(n+1, " before"), fmt.Sprint(n+1, " after"))
	}
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		return all
	}
	one := all[rand.IntN(len(all))]
	return []string{one}
}

// lateTask comes to a GPU with tasks. Nomad fails an allocation for good while the device
// plugin starts again, and makes another.
var lateTask = strings.Replace(jobSpec{id: "late", devices: slicesOf(3), group: startsAgain,
	config: "entrypoint = [\"/bin/mps-client\"]\n" + hostileArgs}.hcl(),
	"attempts  = 0\n      unlimited = false", "delay = \"5s\"\n delay_function = \"constant\"\n unlimited = true", 1)

// Whatever drivers, images, jobs, templates and programs set, each of four tasks of four
// drivers has one namespace of its own, with its limits, and whoever is killed, no program of
// it is ever in another.
func TestTasksOfFourDriversHaveTheirNamespaces(t *testing.T) {
	for _, branch := range []string{"615", "620"} {
		t.Run(branch, func(t *testing.T) {
			t.Parallel()
			ctx, c := v3Node(t, branch)
			node := c.Nodes[0]
			all, owners := map[string]hostileTask{}, map[string]string{}
			tasks := v3Tasks()
			for _, driver := range []string{"containerd", "docker", "raw_exec", "exec"} {
				h := startHostile(ctx, t, c, driver, tasks[driver], "106")
				if by := owners[h.own]; h.own == "" || by != "" {
					t.Errorf("%s and %s are in namespace %q", driver, by, h.own)
				}
				all[driver], owners[h.own] = h, driver
			}
			uuid := onlyGPU(t, c, all["containerd"].alloc)
			waitNamespaces(ctx, t, node, uuid, 4)

			was := v3Daemon(ctx, t, node, uuid)
			for round := range daemonKills() {
				victim := []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}[round%2]
				killOne(t, node, victim)
				for now := was; now.Generation == was.Generation; now = v3Daemon(ctx, t, node, uuid) {
					time.Sleep(100 * time.Millisecond)
				}
				was = v3Daemon(ctx, t, node, uuid)
				waitNamespaces(ctx, t, node, uuid, 4)
			}
			killOne(t, node, "mps-gate")
			if err := errors.Join(restarted(ctx, node, node.KillDevicePlugin, "nomad-device-gpu"), node.WaitNode(ctx, cluster.Ready)); err != nil {
				t.Fatal(err)
			}
			// A plugin that is killed while it makes a task's namespace leaves none, and the task starts.
			for _, step := range pluginSteps() {
				t.Logf("a plugin is killed %s its command", step)
				behavior := node.Path(filepath.Join(was.CommandDir(), "behavior"))
				if err := os.WriteFile(behavior, []byte("kill-asker "+step+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				h := startHostile(ctx, t, c, "late", lateTask, "6")
				if by := owners[h.own]; by != "" {
					t.Errorf("%s: the task is in the namespace of %s", step, by)
				}
				if err := os.Remove(behavior); err != nil {
					t.Fatal(err)
				}
				if err := node.WaitNode(ctx, cluster.Ready); err != nil {
					t.Fatal(err)
				}
				waitNamespaces(ctx, t, node, uuid, 5)
				stop(t, ctx, c, "late")
				waitNamespaces(ctx, t, node, uuid, 4)
			}
			// Each program connects with its server after all of it.
			for _, h := range all {
				nomad(t, ctx, c, "alloc", "signal", "-s", "SIGUSR1", h.alloc.ID)
				h.checkHistory(ctx, t, c, owners)
			}

			// All of it goes with the tasks.
			for driver := range all {
				stop(t, ctx, c, driver)
			}
			waitNamespaces(ctx, t, node, uuid, 0)
			places, err := os.ReadDir(node.Path(filepath.Join(filepath.Dir(was.CommandDir()), "places")))
			if err != nil || len(places) > 0 {
				t.Errorf("places are left: %v, %v", places, err)
			}
			if live := leases(t, node); len(live) > 0 {
				t.Errorf("leases are left: %+v", live)
			}
			if left, err := node.PIDs("mps-client"); err != nil || len(left) > 0 {
				t.Errorf("programs are left: %v, %v", left, err)
			}
		})
	}
}
