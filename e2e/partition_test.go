// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Under static partitioning tasks have multiprocessors of their own, whoever is killed
// meanwhile, and give them back; when the MPS server is lost they start again with others.
func TestTasksHaveMultiprocessorsOfTheirOwn(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced, MPS: "static_partitioning = true", MPSBranch: "590"})
	node := c.Nodes[0]
	dir, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	// held are the partitions that the leases name, by job.
	held := func() map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, l := range leases(t, node) {
			if p := l.Holdings[0].Partition; l.Live() && p != nil {
				all[l.Job] = p.ID + " of " + strconv.Itoa(p.Chunks)
			}
		}
		return all
	}
	half := "gpu {\n  compute = 0.5\n}\n"
	first := run(t, ctx, c, jobSpec{id: "first", devices: slicesOf(8), config: half, group: restartsAtOnce})
	second := run(t, ctx, c, jobSpec{id: "second", devices: slicesOf(8), config: "gpu {\n  compute = 400\n}\n", group: restartsAtOnce})
	report(t, ctx, c, second)
	uuid, was := onlyGPU(t, c, first), held()
	if !strings.HasSuffix(was["first"], " of 8") || !strings.HasSuffix(was["second"], " of 7") {
		t.Errorf("the partitions are %v", was)
	}
	env := report(t, ctx, c, first).Env
	id, _, _ := strings.Cut(was["first"], " ")
	if env["CUDA_MPS_SM_PARTITION"] != uuid+"/"+id || env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "" {
		t.Errorf("the task sees %v, not partition %s", env, id)
	}
	for _, kill := range []func() error{
		func() error { return errors.Join(node.KillClient(), node.StartClient(ctx)) },
		func() error { return restarted(ctx, node, node.KillDevicePlugin, "nomad-device-gpu") },
		func() error { return restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd") },
	} {
		if err := errors.Join(kill(), node.WaitNode(ctx, cluster.Ready)); err != nil {
			t.Fatal(err)
		}
	}
	if now := held(); now["first"] != was["first"] || now["second"] != was["second"] {
		t.Errorf("the partitions were %v and are %v", was, now)
	}

	// 2 chunks for 100 milli, and 1 is left.
	register(t, ctx, c, jobSpec{id: "third", devices: slicesOf(8), config: "gpu {\n  compute = 100\n}\n", group: noRestart})
	failed, err := c.WaitAllocs(ctx, "third", "to fail", func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusFailed
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if status := nomad(t, ctx, c, "alloc", "status", failed[0].ID); !strings.Contains(status, "takes 2 of the GPU's 16 chunks of multiprocessors, and other tasks have 15") {
		t.Errorf("nomad alloc status does not say why:\n%s", status)
	}
	stop(t, ctx, c, "second")
	run(t, ctx, c, jobSpec{id: "fourth", devices: slicesOf(8), config: half})

	// A server's end takes all partitions with it.
	before, err := c.Alloc(ctx, first.ID)
	if err != nil {
		t.Fatal(err)
	}
	state, err := dir.GPU(uuid)
	if err != nil {
		t.Fatal(err)
	}
	servers, err := node.PIDs("nvidia-cuda-mps-server")
	if err != nil || len(servers) == 0 {
		t.Fatalf("servers are %v, %v", servers, err)
	}
	for _, pid := range servers {
		if p, err := os.FindProcess(pid); err != nil || p.Kill() != nil {
			t.Fatalf("kill %d: %v", pid, err)
		}
	}
	alloc, err := c.WaitAlloc(ctx, first.ID, "to start again", func(a *api.Allocation) bool {
		return a.TaskStates["task"].Restarts > before.TaskStates["task"].Restarts && a.TaskStates["task"].State == "running"
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(alloc.TaskStates["task"].Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, "MPS") }) {
		t.Errorf("no event tells of the MPS daemon: %+v", alloc.TaskStates["task"].Events)
	}
	if now, err := dir.GPU(uuid); err != nil || now.MPS.Generation <= state.MPS.Generation {
		t.Errorf("the MPS daemon is %+v, %v", now.MPS, err)
	}
	if now := held(); !strings.HasSuffix(now["first"], " of 8") {
		t.Errorf("the partitions are %v", now)
	}
}
