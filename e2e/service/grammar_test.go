// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// mixed is a machine with a V100 and an H100 in slices, an A100 in MIG
// instances and a whole A30.
const mixed = `mode    = "slice"
    sharing = "mps"
    gpu {
      index = 1
      mode  = "mig"
    }
    gpu {
      index = 3
      mode  = "whole"
    }`

// TestGrammar runs every form of a request in a container, and compares what
// the driver holds the task to with what was asked for.
func TestGrammar(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Options{Bin: filepath.Join(root, "bin"), Progress: t.Logf, Nodes: []cluster.NodeOptions{
		{Topology: filepath.Join(root, "e2e", "topology", "mixed.hcl"), GPUs: mixed}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	r := serve(ctx, t, c, "")
	t.Cleanup(func() { r.kill(syscall.SIGTERM) })
	admits(ctx, t, r)
	for i, tc := range []struct {
		meta   map[string]string
		device string // vendor, type and name that Nomad gave
		slices int
		share  gpu.Share
	}{
		{map[string]string{"gpu": "1(A30)"}, "nvidia/gpu/NVIDIA A30", 0, gpu.Share{}},
		{map[string]string{"gpu": "1(nvidia,V100)"}, "nvidia/slice/V100/0", 31, gpu.Share{}},
		{map[string]string{"gpu": "8G(H100)"}, "nvidia/slice/H100/2", 8, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 101}},
		{map[string]string{"gpu": "8G,0.5(H100)"}, "nvidia/slice/H100/2", 8, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500}},
		{map[string]string{"gpu": "8G,0.5(H100)", "gpu_limit": "0.8"}, "nvidia/slice/H100/2", 8, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 800}},
		{map[string]string{"gpu": "8600MiB(NVIDIA-H100-80GB-HBM3)"}, "nvidia/slice/H100/2", 9, gpu.Share{MemoryMiB: 8600, GuaranteeMilli: 113}},
		{map[string]string{"gpu": "0.5(H100)", "gpu_sharing": "mps"}, "nvidia/slice/H100/2", 39, gpu.Share{MemoryMiB: 39 * 1024, GuaranteeMilli: 500}},
		{map[string]string{"gpu": "16G(A100)"}, "nvidia/mig/3g.20gb", 0, gpu.Share{}},
		{map[string]string{"gpu": "0.25(V100)"}, "nvidia/slice/V100/0", 7, gpu.Share{MemoryMiB: 7 * 1024, GuaranteeMilli: 250}},
	} {
		t.Run(tc.meta["gpu"]+tc.meta["gpu_limit"], func(t *testing.T) {
			id := fmt.Sprintf("form-%d", i)
			if err := submit(ctx, r.API, container(id, tc.meta)); err != nil {
				t.Fatal(err)
			}
			alloc, err := c.Alloc(ctx, runs(ctx, t, c.API, id, 1)[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			d := alloc.AllocatedResources.Tasks["probe"].Devices[0]
			if got := d.Vendor + "/" + d.Type + "/" + d.Name; got != tc.device {
				t.Errorf("Nomad gave %s, want %s", got, tc.device)
			}
			holding := leased(t, c, alloc.ID, "probe")
			if len(holding.Slices) != tc.slices {
				t.Errorf("%d slices, want %d", len(holding.Slices), tc.slices)
			}
			if tc.share.MemoryMiB != 0 && !within(holding.Share, tc.share) {
				t.Errorf("the driver holds it to %+v, want %+v", holding.Share, tc.share)
			}
			if err := c.Stop(ctx, id); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("several on one GPU", func(t *testing.T) { severalOnOneGPU(ctx, t, c, r) })
}

// severalOnOneGPU has Nomad alone choose the GPUs of several allocs: it counts
// slices, and by them keeps their compute within the GPU. What finds none left
// waits, and nothing starts that the node would have to refuse.
func severalOnOneGPU(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	several := container("several", map[string]string{"gpu": "8G,0.5(H100)"})
	several.count = 3
	if err := submit(ctx, r.API, several); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "several", 2)
	until(ctx, t, "have the third wait", 20*time.Second, func() (bool, string) {
		evals, _, err := c.API.Jobs().Evaluations("several", nil)
		if err != nil {
			return false, err.Error()
		}
		return slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "blocked" }), fmt.Sprintf("%d evaluations", len(evals))
	})
	all, _, err := c.API.Jobs().Allocations("several", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.ClientStatus != api.AllocClientStatusRunning {
			t.Errorf("alloc %s is %s: %s", a.ID, a.ClientStatus, a.ClientDescription)
			continue
		}
		h := leased(t, c, a.ID, "probe")
		if want := (gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500}); len(h.Slices) != 39 || !within(h.Share, want) {
			t.Errorf("%d slices and %+v, want 39 and %+v", len(h.Slices), h.Share, want)
		}
	}
}

// TestExample runs the job file that shows how to ask.
func TestExample(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	if code, out := nomad(ctx, t, r.URL, "job", "run", "-detach", filepath.Join(root, "examples", "service", "fraction.nomad.hcl")); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	runs(ctx, t, c.API, "fraction", 1)
}

// within compares shares; a limit of 0 in want is any.
func within(got, want gpu.Share) bool {
	return got.MemoryMiB == want.MemoryMiB && got.GuaranteeMilli == want.GuaranteeMilli &&
		(want.LimitMilli == 0 || got.LimitMilli == want.LimitMilli)
}

// container is a job in a container that only asks.
func container(id string, meta map[string]string) job {
	return job{id: id, meta: meta, image: "localhost/gpuprobe:1"}
}

// leased is what the driver's lease says of a task's only GPU.
func leased(t *testing.T, c *cluster.Cluster, alloc, task string) gpu.Holding {
	t.Helper()
	state, err := c.Nodes[0].State()
	if err != nil {
		t.Fatal(err)
	}
	lease, err := state.Lease(gpu.LeaseID(alloc, task))
	if err != nil || len(lease.Holdings) != 1 {
		t.Fatalf("lease %+v: %v", lease, err)
	}
	return lease.Holdings[0]
}
