// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// jobSpec is a job with one task called "task"; its parts are HCL.
type jobSpec struct {
	id string
	// devices goes into the task's resources, config into its config block after
	// the image, task into the task and group into the group.
	devices, config, task, group string
	count                        int
}

func (j jobSpec) hcl() string {
	return fmt.Sprintf(`
job %q {
  group "group" {
    count = %d
    # What fails stays failed: a test waits for what it expects.
    reschedule {
      attempts  = 0
      unlimited = false
    }
    %s
    task "task" {
      driver = "containerd"
      config {
        image = %q
        %s
      }
      %s
      resources {
        cpu    = 100
        memory = 64
        %s
      }
    }
  }
}
`, j.id, max(j.count, 1), j.group, cluster.Image, j.config, j.task, j.devices)
}

// noRestart lets a task that ends be final.
const noRestart = `
    restart {
      attempts = 0
      mode     = "fail"
    }
`

func slicesOf(count int) string {
	return fmt.Sprintf("device \"nvidia/slice\" {\n count = %d\n}\n", count)
}

// run registers a job and returns its running allocation.
func run(t *testing.T, ctx context.Context, c *cluster.Cluster, j jobSpec) *api.Allocation {
	t.Helper()
	register(t, ctx, c, j)
	alloc, err := c.Running(ctx, j.id)
	if err != nil {
		t.Fatal(err)
	}
	return alloc
}

func register(t *testing.T, ctx context.Context, c *cluster.Cluster, j jobSpec) {
	t.Helper()
	if _, err := c.Run(ctx, j.hcl()); err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, ctx context.Context, c *cluster.Cluster, jobs ...string) {
	t.Helper()
	for _, job := range jobs {
		if err := c.Stop(ctx, job); err != nil {
			t.Fatal(err)
		}
	}
}

func report(t *testing.T, ctx context.Context, c *cluster.Cluster, alloc *api.Allocation) probe.Report {
	t.Helper()
	r, err := c.Report(ctx, alloc, "task")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// nomad runs Nomad's command line as a user would, and returns what it prints.
func nomad(t *testing.T, ctx context.Context, c *cluster.Cluster, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "e2e", "nomad"), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nomad %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(bytes.TrimSpace(out))
}

// nodeOf returns the node that an allocation is on.
func nodeOf(t *testing.T, c *cluster.Cluster, alloc *api.Allocation) *cluster.Node {
	t.Helper()
	for _, n := range c.Nodes {
		if n.ID == alloc.NodeID {
			return n
		}
	}
	t.Fatalf("alloc %s is on an unknown node %s", alloc.ID, alloc.NodeID)
	return nil
}

// leases reads a node's live leases.
func leases(t *testing.T, n *cluster.Node) []gpu.Lease {
	t.Helper()
	dir, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	all, err := dir.Leases()
	if err != nil {
		t.Fatal(err)
	}
	var live []gpu.Lease
	for _, l := range all {
		if l.Live() {
			live = append(live, l)
		}
	}
	return live
}

// holdings returns what the allocation's task holds.
func holdings(t *testing.T, c *cluster.Cluster, alloc *api.Allocation) []gpu.Holding {
	t.Helper()
	for _, l := range leases(t, nodeOf(t, c, alloc)) {
		if l.AllocID == alloc.ID {
			return l.Holdings
		}
	}
	t.Fatalf("alloc %s of job %s has no live lease", alloc.ID, alloc.JobID)
	return nil
}

// onlyGPU returns the single GPU that the allocation's task holds.
func onlyGPU(t *testing.T, c *cluster.Cluster, alloc *api.Allocation) string {
	t.Helper()
	held := holdings(t, c, alloc)
	if len(held) != 1 {
		t.Fatalf("job %s holds %d GPUs: %+v", alloc.JobID, len(held), held)
	}
	return held[0].UUID
}

// checkBooking fails when any device or slice of any node is held twice, by the
// leases or by Nomad's own account, or when the two stay apart. They may for a
// moment, while a task starts or ends.
func checkBooking(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, n := range c.Nodes {
		for {
			leased, booked := leasedOn(t, n), accounted(t, ctx, c, n)
			if maps.Equal(leased, booked) {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
			}
			t.Fatalf("%s: by its leases the allocs hold %v, by Nomad's account %v", n.Name, leased, booked)
		}
	}
}

// leasedOn is which allocation holds each device or slice, by the node's leases.
func leasedOn(t *testing.T, n *cluster.Node) map[string]string {
	t.Helper()
	leased := map[string]string{}
	for _, l := range leases(t, n) {
		for _, h := range l.Holdings {
			if len(h.Slices) == 0 {
				book(t, leased, n.Name, h.UUID, l.AllocID)
			}
			for _, slice := range h.Slices {
				book(t, leased, n.Name, gpu.SliceID{UUID: h.UUID, N: slice}.String(), l.AllocID)
			}
		}
	}
	return leased
}

func book(t *testing.T, booked map[string]string, node, id, alloc string) {
	t.Helper()
	if other := booked[id]; other != "" {
		t.Errorf("%s: %s is held by allocs %.8s and %.8s", node, id, other, alloc)
	}
	booked[id] = alloc
}

// accounted is which running allocation holds each instance, by Nomad's account.
func accounted(t *testing.T, ctx context.Context, c *cluster.Cluster, n *cluster.Node) map[string]string {
	t.Helper()
	booked := map[string]string{}
	allocs, _, err := c.API.Nodes().Allocations(n.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range allocs {
		if a.ClientStatus != api.AllocClientStatusRunning || a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, device := range task.Devices {
				for _, id := range device.DeviceIDs {
					book(t, booked, n.Name, id, a.ID)
				}
			}
		}
	}
	return booked
}
