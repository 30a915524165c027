// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestMistakesInJobsAreExplained(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	for name, test := range map[string]struct {
		job  jobSpec
		says []string
	}{
		"memory above the slices": {
			jobSpec{devices: slicesOf(8), config: "gpu {\n memory = \"9GiB\"\n}"},
			[]string{"gpu.memory: 9G", "8G", "at most"},
		},
		"memory without a unit": {
			jobSpec{devices: slicesOf(8), config: "gpu {\n memory = \"7\"\n}"},
			[]string{`gpu.memory: "7"`, "unit", "8G or 512MiB"},
		},
		"limit below the guarantee": {
			jobSpec{devices: slicesOf(8), config: "gpu {\n compute = 500\n compute_limit = 400\n}"},
			[]string{"gpu.compute_limit: 400", "gpu.compute 500", "at least 500"},
		},
		"compute above a GPU": {
			jobSpec{devices: slicesOf(8), config: "gpu {\n compute = 1001\n}"},
			[]string{`gpu.compute: "1001"`, "0.001 to 1"},
		},
		"unknown key": {
			jobSpec{devices: slicesOf(8), config: "gpu {\n memori = \"7GiB\"\n}"},
			[]string{"memori"},
		},
		"gpu block without a device": {
			jobSpec{config: "gpu {\n memory = \"7GiB\"\n}"},
			[]string{"gpu block", "no GPU", "device block"},
		},
		"meta without a device": {
			jobSpec{task: "meta {\n gpu = \"8G,0.5\"\n}"},
			[]string{`meta { gpu = "8G,0.5" }`, "placement service", "resources"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.job.id = strings.ReplaceAll(name, " ", "-")
			test.job.group = noRestart
			register(t, ctx, c, test.job)
			failed, err := c.WaitAllocs(ctx, test.job.id, "to fail", func(a *api.AllocationListStub) bool {
				return a.ClientStatus == api.AllocClientStatusFailed
			}, 1)
			if err != nil {
				t.Fatal(err)
			}
			status := nomad(t, ctx, c, "alloc", "status", failed[0].ID)
			for _, say := range test.says {
				if !strings.Contains(status, say) {
					t.Errorf("nomad alloc status does not say %q:\n%s", say, status)
				}
			}
			if running := programs(t, c.Nodes[0]); len(running) != 0 {
				t.Errorf("the refused task runs as %v", running)
			}
		})
	}
}

// A guarantee that the GPU has no compute left for is refused on the node.
func TestComputeGuaranteesStayWithinTheGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	run(t, ctx, c, jobSpec{id: "first", devices: slicesOf(8), config: "gpu {\n compute = 700\n}"})
	register(t, ctx, c, jobSpec{id: "second", devices: slicesOf(8), group: noRestart, config: "gpu {\n compute = 400\n}"})
	failed, err := c.WaitAllocs(ctx, "second", "to fail", func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusFailed
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if status := nomad(t, ctx, c, "alloc", "status", failed[0].ID); !strings.Contains(status, "ask for at most 0.3 (compute = 300 in a gpu block)") {
		t.Errorf("nomad alloc status does not say how much is left:\n%s", status)
	}
}

func TestMistakesInConfigurationStopTheClient(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bad.hcl")
	if err := os.WriteFile(file, []byte("machine \"m\" {}\ngpu {\n  model = \"H1000\"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := h100(t, 1)
	for name, test := range map[string]struct {
		node cluster.NodeOptions
		says []string
	}{
		"mode": {
			cluster.NodeOptions{Topology: good, GPUs: `mode = "slices"`},
			[]string{"mode", `"slices"`, "whole, slice, shared, mig"},
		},
		"unknown key of the device plugin": {
			cluster.NodeOptions{Topology: good, GPUs: `slice_memori = "1GiB"`},
			[]string{"slice_memori"},
		},
		"topology": {
			cluster.NodeOptions{Topology: file},
			[]string{"bad.hcl:3", "H1000"},
		},
		"driver": {
			cluster.NodeOptions{Topology: good, Driver: `stats_interval = "often"`},
			[]string{"stats_interval", `"often"`, "30s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c, err := cluster.Start(ctx, cluster.Options{Bin: filepath.Join(root, "bin"), Nodes: []cluster.NodeOptions{test.node}})
			if err == nil {
				t.Fatal("the client started", c.Close())
			}
			for _, say := range test.says {
				if !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), say) {
					t.Errorf("the error does not say %q:\n%v", say, err)
				}
			}
		})
	}
}
