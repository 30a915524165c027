// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestMemoryIsCountedPerGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	first := run(t, ctx, c, jobSpec{id: "first", devices: slicesOf(48)})
	second := run(t, ctx, c, jobSpec{id: "second", devices: slicesOf(48)})
	if onlyGPU(t, c, first) == onlyGPU(t, c, second) {
		t.Error("48 + 48 GiB are on one GPU of 80 GB")
	}
	run(t, ctx, c, jobSpec{id: "fits", devices: slicesOf(30)})
	checkBooking(t, ctx, c)

	// 79 - 48 = 31 are left on the one GPU, 1 on the other.
	register(t, ctx, c, jobSpec{id: "waits", devices: slicesOf(32)})
	alloc, reason, err := c.Settled(ctx, "waits")
	if err != nil {
		t.Fatal(err)
	}
	if alloc != nil || !strings.Contains(reason, "devices") {
		t.Fatalf("a job without room runs as %+v, or does not say why it waits: %q", alloc, reason)
	}
	if status := nomad(t, ctx, c, "job", "status", "waits"); !strings.Contains(status, "Placement Failure") || !strings.Contains(status, "devices") {
		t.Errorf("nomad job status does not say why the job waits:\n%s", status)
	}
	stop(t, ctx, c, "second")
	if _, err := c.Running(ctx, "waits"); err != nil {
		t.Errorf("room was made, but: %v", err)
	}
	checkBooking(t, ctx, c)
}

func TestTwoTasksShareOneGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	a := run(t, ctx, c, jobSpec{id: "a", devices: slicesOf(30)})
	b := run(t, ctx, c, jobSpec{id: "b", devices: slicesOf(40)})
	if onlyGPU(t, c, a) != onlyGPU(t, c, b) {
		t.Error("the machine has one GPU")
	}
	for alloc, want := range map[*api.Allocation]string{a: "0=30720M", b: "0=40960M"} {
		if got := report(t, ctx, c, alloc).MemoryLimit; got != want {
			t.Errorf("job %s sees the memory limit %q, want %q", alloc.JobID, got, want)
		}
	}
	checkBooking(t, ctx, c)
}

// While Nomad's client and the device plugin are away, the GPUs of a node change. What runs there must
// not be booked a second time, and its healthy twin must still be used.
func TestNothingIsBookedTwiceWhenGPUsChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string, uuids []string) error{
		"renumbered": func(dir string, uuids []string) error {
			return sim.WriteControl(dir, sim.Control{Order: []string{uuids[1], uuids[0]}})
		},
		"missing": func(dir string, uuids []string) error {
			return sim.Update(dir, uuids[0], func(c *sim.Condition) { c.Missing = true })
		},
		"unhealthy": func(dir string, uuids []string) error {
			return sim.Update(dir, uuids[0], func(c *sim.Condition) { c.Lost = true })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair := h100(t, 2)
			ctx, c := start(t, cluster.NodeOptions{Topology: pair, GPUs: sliced}, cluster.NodeOptions{Topology: pair, GPUs: sliced})
			changed, twin := c.Nodes[0], c.Nodes[1]
			uuids := fillHalf(t, ctx, c, changed)
			if err := errors.Join(changed.KillClient(), changed.KillDevicePlugin()); err != nil {
				t.Fatal(err)
			}
			if err := change(changed.SimDir(), uuids); err != nil {
				t.Fatal(err)
			}
			changed.Ready = func(node *api.Node) bool { return seenAs(node, name, uuids[0]) }
			if err := changed.StartClient(ctx); err != nil {
				t.Fatal(err)
			}
			checkBooking(t, ctx, c)
			// 31 slices are free on each of the changed node's GPUs, 79 on the twin's.
			for _, id := range []string{"later-0", "later-1"} {
				if alloc := run(t, ctx, c, jobSpec{id: id, devices: slicesOf(48)}); alloc.NodeID != twin.ID {
					t.Errorf("%s of 48 slices is on the changed node, whose GPUs have 31 left", id)
				}
			}
			register(t, ctx, c, jobSpec{id: "none-left", devices: slicesOf(32)})
			if alloc, reason, err := c.Settled(ctx, "none-left"); err != nil || alloc != nil {
				t.Errorf("32 slices were found where at most 31 are left (%q, %v)", reason, err)
			}
			checkBooking(t, ctx, c)
		})
	}
}

// fillHalf runs a task of 48 slices on each of the node's two GPUs and returns
// the GPUs, that of the first task first.
func fillHalf(t *testing.T, ctx context.Context, c *cluster.Cluster, n *cluster.Node) []string {
	t.Helper()
	here := "constraint {\n attribute = \"${node.unique.id}\"\n value = \"" + n.ID + "\"\n}\n"
	var uuids []string
	for _, id := range []string{"early-0", "early-1"} {
		uuids = append(uuids, onlyGPU(t, c, run(t, ctx, c, jobSpec{id: id, devices: slicesOf(48), group: here})))
	}
	return uuids
}

// seenAs reports whether Nomad sees the GPU as the change made it.
func seenAs(node *api.Node, change, uuid string) bool {
	if node.NodeResources == nil {
		return false
	}
	present, healthy := false, true
	for _, group := range node.NodeResources.Devices {
		for _, instance := range group.Instances {
			if strings.HasPrefix(instance.ID, uuid) {
				present, healthy = true, healthy && instance.Healthy
			}
		}
	}
	switch change {
	case "missing", "unhealthy":
		return !present || !healthy
	default:
		return present && healthy && cluster.AllHealthy(node)
	}
}
