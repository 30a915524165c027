// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/foreign/offer"
	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// GPUs of another device plugin, beside ours on one node, are counted and shown; jobs that
// the service admits get them, by model, by vendor and by what they are not, and the
// containerd driver hands them in.
func TestGPUsOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), offer.Plugin)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./e2e/foreign")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the other plugin: %v\n%s", err, out)
	}
	ctx, c := startNodes(t, cluster.NodeOptions{
		Topology: filepath.Join(root, "e2e", "topology", "t4.hcl"), GPUs: cut, Plugins: map[string]string{offer.Plugin: program},
	})
	describeByCDI(t, c.Nodes[0])
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	shown := picture(ctx, t, r)
	for uuid, want := range map[string]string{offer.NVIDIA[0]: "nvidia/gpu/" + offer.NVIDIAModel, offer.AMD[0]: "amd/gpu/" + offer.AMDModel} {
		at := slices.IndexFunc(shown, func(g view.GPU) bool { return g.UUID == uuid })
		if at < 0 || shown[at].Group != want || !shown[at].Healthy || shown[at].Mode != "whole" {
			t.Errorf("%s is not shown as %s: %+v", uuid, want, shown)
		}
	}
	for _, tc := range []struct{ id, request, node string }{
		{"by-model", "1(V100)", "/dev/nvidia8"},
		{"in-order", "1(H100|V100)", "/dev/nvidia8"},
		{"by-vendor", "1(amd)", offer.AMDNode},
	} {
		spec := job{id: tc.id, image: cluster.Image, meta: map[string]string{"gpu": tc.request}}
		admitted(ctx, t, r, spec)
		alloc, err := c.Running(ctx, tc.id)
		if err != nil {
			t.Fatal(err)
		}
		found, err := c.Report(ctx, alloc, "probe")
		if err != nil {
			t.Fatal(err)
		}
		opened := slices.IndexFunc(found.Nodes, func(n probe.Node) bool { return strings.HasPrefix(n.Path, tc.node) })
		if opened < 0 || found.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
			t.Errorf("%s has %+v, and the variables %v", tc.request, found.Nodes, found.Env)
		}
		admitted(ctx, t, r, spec)
		if again := runs(ctx, t, c.API, tc.id, 1); again[0].ID != alloc.ID {
			t.Errorf("%s, submitted again, was replaced", tc.request)
		}
	}
	// Its GPUs are taken, so that what excludes ours waits.
	admitted(ctx, t, r, job{id: "waits", meta: map[string]string{"gpu": "1(!T4)"}})
	until(ctx, t, "show who holds the other plugin's GPUs", 3*time.Minute, func() (bool, string) {
		held := 0
		for _, g := range picture(ctx, t, r) {
			held += g.HeldInstances
		}
		return held == 3, fmt.Sprint(held, " are held")
	})
	if live := allocs(ctx, t, c.API, "default", "waits"); len(live) != 0 {
		t.Errorf("1(!T4) runs: %+v", live)
	}
	doubleBooked(ctx, t, c.API)
}

// describeByCDI writes the operator's own specs: one node for each GPU of the variable.
func describeByCDI(t *testing.T, n *cluster.Node) {
	t.Helper()
	var devices []map[string]any
	for i, id := range offer.NVIDIA {
		node := map[string]any{"path": fmt.Sprint("/dev/nvidia8", i), "hostPath": "/dev/full", "type": "c", "major": 1, "minor": 7}
		devices = append(devices, map[string]any{"name": id, "containerEdits": map[string]any{"deviceNodes": []any{node}}})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.Path("/run/cdi"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(n.Path("/run/cdi"), "nvidia.json"), string(text))
}

// picture is every GPU that the service shows.
func picture(ctx context.Context, t *testing.T, r *replica) (all []view.GPU) {
	t.Helper()
	var seen view.Cluster
	if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &seen, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	for _, n := range seen.Nodes {
		all = append(all, n.GPUs...)
	}
	return all
}
