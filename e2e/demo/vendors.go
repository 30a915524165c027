// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// showVendors has a machine with devices of every vendor join, runs each vendor's example
// there, and pulls a card out and puts it back.
func showVendors(ctx context.Context, c *cluster.Cluster, root string) ([]row, error) {
	machine := cluster.MachineOfVendors(root)
	progress("a machine joins: two H100, two MI300X in partitions, a Flex 170, three Ascend 910B3, one of them in vNPUs")
	n, err := c.Join(ctx, machine)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, "examples", "vendors", "*.nomad.hcl"))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, file := range files {
		progress("nomad job run examples/vendors/%s", filepath.Base(file))
		if _, err := c.RunFile(ctx, file); err != nil {
			return nil, err
		}
		alloc, err := c.Running(ctx, jobOf(file))
		if err != nil {
			return nil, err
		}
		r, err := describe(ctx, c, alloc)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, unplug(ctx, n, machine.Topology)
}

// unplug takes the card of Intel's out of a machine and puts it back, as Nomad sees it.
func unplug(ctx context.Context, n *cluster.Node, topology string) error {
	t, err := sim.ReadTopology(topology, n.Name)
	if err != nil {
		return err
	}
	for i, card := range t.Cards {
		if card.Vendor != "intel" {
			continue
		}
		progress("the %s is pulled out", card.Name)
		if err := sim.Update(n.SimDir(), t.CardUUID(i), func(c *sim.Condition) { c.Missing = true }); err != nil {
			return err
		}
		if err := n.WaitNode(ctx, func(node *api.Node) bool {
			why, healthy := health(node, t.CardUUID(i))
			if !healthy {
				progress("Nomad says: %s", why)
			}
			return !healthy
		}); err != nil {
			return err
		}
		if err := sim.Update(n.SimDir(), t.CardUUID(i), func(c *sim.Condition) { c.Missing = false }); err != nil {
			return err
		}
		if err := n.WaitNode(ctx, func(node *api.Node) bool { _, healthy := health(node, t.CardUUID(i)); return healthy }); err != nil {
			return err
		}
		progress("it is put back, and healthy again")
		return nil
	}
	return fmt.Errorf("%s has no card of Intel's", topology)
}

// health is what Nomad knows of an instance.
func health(node *api.Node, id string) (why string, healthy bool) {
	for _, group := range node.NodeResources.Devices {
		for _, instance := range group.Instances {
			if instance.ID == id {
				why, _, _ = strings.Cut(instance.HealthDescription, " (since")
				return group.ID() + ": " + why, instance.Healthy
			}
		}
	}
	return id + " is not listed", false
}
