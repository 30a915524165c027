// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// sockets is a machine of eight GPUs, every other one on the same NUMA node.
func sockets(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sockets.hcl")
	text := "machine \"m\" {}\n"
	for i := range 8 {
		text += fmt.Sprintf("gpu {\n  model = \"T4\"\n  numa  = %d\n}\n", i%2)
	}
	write(t, path, text)
	return path
}

// gpusOf are the UUIDs that an alloc holds, by Nomad's account.
func gpusOf(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) []string {
	t.Helper()
	full, err := c.Alloc(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var uuids []string
	for _, d := range full.AllocatedResources.Tasks["sleep"].Devices {
		for _, instance := range d.DeviceIDs {
			if uuid, _, _ := strings.Cut(instance, "::"); !seen[uuid] {
				seen[uuid], uuids = true, append(uuids, uuid)
			}
		}
	}
	return uuids
}

// machineCloseness is what the node's fingerprint says of all its GPUs.
func machineCloseness(ctx context.Context, t *testing.T, c *cluster.Cluster) gpu.Closeness {
	t.Helper()
	node, _, err := c.API.Nodes().Info(c.Nodes[0].ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	var all gpu.Closeness
	for _, d := range node.NodeResources.Devices {
		near, err := gpu.ParseCloseness(*d.Attributes[gpu.AttrCloseness].StringVal)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, near...)
	}
	return all
}

// What the service chose because it is close is what Nomad gives, in every mode.
func TestTasksOfSeveralGPUsGetTheClosest(t *testing.T) {
	t.Parallel()
	for mode, gpus := range map[string]string{"whole": "", "slices": cut} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ctx, c := startNodes(t, cluster.NodeOptions{Topology: sockets(t), GPUs: gpus})
			r := serve(ctx, t, c, "")
			near := machineCloseness(ctx, t, c)
			for i := range 4 { // the last one has no choice, if those before it are right
				j := job{id: fmt.Sprintf("pair-%d", i), kind: "batch", meta: map[string]string{"gpu": "2"}}
				admitted(ctx, t, r, j)
				uuids := gpusOf(ctx, t, c, runs(ctx, t, c.API, j.id, 1)[0].ID)
				if len(uuids) != 2 {
					t.Fatalf("job %s holds %q", j.id, uuids)
				}
				first, known := near.NUMANode(uuids[0])
				if second, _ := near.NUMANode(uuids[1]); !known || first != second {
					t.Errorf("job %s holds %q, of the NUMA nodes %d and %d", j.id, uuids, first, second)
				}
			}
			doubleBooked(ctx, t, c.API)
		})
	}
}

// Without the service, Nomad takes GPUs of a group at random, and a job names those
// that it means.
func TestDirectJobsNameTheGPUsThatTheyMean(t *testing.T) {
	t.Parallel()
	ctx, c := startNodes(t, cluster.NodeOptions{Topology: sockets(t)})
	near := machineCloseness(ctx, t, c)
	var meant []string
	for _, n := range near {
		if n.By == gpu.NearNUMA && n.N == 1 {
			meant = n.UUIDs
		}
	}
	two := uint64(2)
	for i := range 2 {
		j := job{id: fmt.Sprintf("direct-%d", i), kind: "batch", devices: []*api.RequestedDevice{{Name: "nvidia/gpu", Count: &two,
			Constraints: []*api.Constraint{{LTarget: "${device.ids}", Operand: "set_contains_any", RTarget: strings.Join(meant, ",")}}}}}
		if err := submit(ctx, c.API, j); err != nil {
			t.Fatal(err)
		}
		for _, uuid := range gpusOf(ctx, t, c, runs(ctx, t, c.API, j.id, 1)[0].ID) {
			if on, _ := near.NUMANode(uuid); on != 1 {
				t.Errorf("job %s holds %s, of NUMA node %d", j.id, uuid, on)
			}
		}
	}
}
