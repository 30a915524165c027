// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// What happens to a device of any vendor, Nomad knows of that device alone, with the reason,
// and it takes work again when it is over: pulled out, wedged, a partition lost, a fault of
// the hardware, the driver loaded anew. Tasks on other devices do not notice.
func TestFaultsOfEveryVendor(t *testing.T) {
	t.Parallel()
	machine := cluster.MachineOfVendors(root)
	ctx, c := start(t, machine)
	n := c.Nodes[0]
	topology, err := sim.ReadTopology(machine.Topology, n.Name)
	if err != nil {
		t.Fatal(err)
	}
	const flex, vnpus = 2, 5
	bystanders := map[string]*api.Allocation{}
	for id, device := range map[string]string{"h100": "nvidia/gpu", "npu": "huawei/npu"} {
		bystanders[id] = run(t, ctx, c, jobSpec{id: id, devices: fmt.Sprintf("device %q {}", device)})
	}
	npu := slices.IndexFunc([]string{topology.CardUUID(3), topology.CardUUID(4)}, func(uuid string) bool { return uuid != onlyGPU(t, c, bystanders["npu"]) }) + 3
	var ofAMD []string
	for part := range 8 {
		ofAMD = append(ofAMD, topology.PartitionUUID(0, part))
	}
	happens := func(card int, change func(*sim.Condition)) func() error {
		return func() error { return sim.Update(n.SimDir(), topology.CardUUID(card), change) }
	}
	cured := func(card int) func() error {
		return happens(card, func(c *sim.Condition) {
			c.Missing, c.ProbeFails, c.LostPartitions, c.Health, c.Faults = false, false, nil, 0, nil
		})
	}
	unloaded := func(vendors ...string) func() error {
		return func() error { return sim.WriteControl(n.SimDir(), sim.Control{NoDriver: vendors}) }
	}
	for _, tc := range []trouble{
		{"pulled out", happens(flex, func(c *sim.Condition) { c.Missing = true }), cured(flex), []string{topology.CardUUID(flex)}, "gpu-missing", "intel/gpu"},
		{"wedged", happens(0, func(c *sim.Condition) { c.ProbeFails, c.Uevents = true, []string{"WEDGED=bus-reset"} }), cured(0), ofAMD, "event-gpu-wedged", ""},
		{"a lost partition", happens(vnpus, func(c *sim.Condition) { c.LostPartitions = []int{133} }), cured(vnpus), []string{topology.PartitionUUID(vnpus, 1)}, "vnpu-lost", "huawei/vnpu/vir05_1c_16g"},
		{"a fault", happens(npu, func(c *sim.Condition) { c.Health, c.Faults = 3, []string{"80E01801"} }), cured(npu), []string{topology.CardUUID(npu)}, "npu-80e01801", ""},
		{"AMD's driver is loaded anew", unloaded("amd"), unloaded(), slices.Concat(ofAMD, partitions(topology, 1)), "amdgpu-absent", "amd/partition"},
		{"Intel's driver is loaded anew", unloaded("intel"), unloaded(), []string{topology.CardUUID(flex)}, "intel-absent", "intel/gpu"},
	} {
		tc.comesAndGoes(t, ctx, c)
	}
	for id, was := range bystanders {
		now, err := c.Running(ctx, id)
		if err != nil || now.ID != was.ID || now.TaskStates["task"].Restarts != 0 {
			t.Errorf("%s did not just run on: %v, %v", id, now, err)
		}
	}
	stop(t, ctx, c, "npu")
	trouble{"Huawei's driver is loaded anew", unloaded("huawei"), unloaded(),
		append(partitions(topology, vnpus), topology.CardUUID(3), topology.CardUUID(4)), "dcmi-absent", "huawei/npu"}.comesAndGoes(t, ctx, c)
}

// trouble is what happens to some devices of a machine, and goes by.
type trouble struct {
	name          string
	begins, cures func() error
	ill           []string
	code          string
	waits         string // the device of a job that starts when it is over
}

func (f trouble) comesAndGoes(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	if err := f.begins(); err != nil {
		t.Fatal(err)
	}
	waitIll(t, ctx, c.Nodes[0], f.name, f.ill, f.code)
	waiting := "waits-" + f.code
	if f.waits != "" {
		register(t, ctx, c, jobSpec{id: waiting, devices: fmt.Sprintf("device %q {}", f.waits)})
		if alloc, why, err := c.Settled(ctx, waiting); err != nil || alloc != nil {
			t.Errorf("%s: a job for %s is placed: %v, %s, %v", f.name, f.waits, alloc, why, err)
		}
	}
	if err := f.cures(); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[0].WaitNode(ctx, cluster.AllHealthy); err != nil {
		t.Fatalf("%s: it is not over: %v", f.name, err)
	}
	if f.waits != "" {
		if _, err := c.Running(ctx, waiting); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		stop(t, ctx, c, waiting)
	}
}

func partitions(t *sim.Topology, card int) (all []string) {
	for part := range t.CardParts(card) {
		all = append(all, t.PartitionUUID(card, part))
	}
	return all
}

// waitIll waits until these instances, and no others, are unhealthy for a reason.
func waitIll(t *testing.T, ctx context.Context, n *cluster.Node, what string, ill []string, code string) {
	t.Helper()
	last := ""
	err := n.WaitNode(ctx, func(node *api.Node) bool {
		var found []string
		last = ""
		for _, group := range node.NodeResources.Devices {
			for _, instance := range group.Instances {
				if !instance.Healthy && strings.HasPrefix(instance.HealthDescription, code+": ") {
					found = append(found, instance.ID)
				} else if !instance.Healthy {
					last += instance.ID + " " + instance.HealthDescription + "\n"
				}
			}
		}
		slices.Sort(found)
		return last == "" && slices.Equal(found, slices.Sorted(slices.Values(ill)))
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, last)
	}
}
