// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/driver"
	driverconfig "github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// diagnoseNomad looks at the node as Nomad sees it, with the device plugin alone or with
// both.
func diagnoseNomad(ctx context.Context, agent agentconfig.Agent, alone bool, area *doctor.Area) {
	if !agent.PublishMetrics {
		area.Warn("statistics", "set telemetry { publish_allocation_metrics = true }", "publish_allocation_metrics is not set: nomad alloc status -stats shows nothing of tasks")
	} else {
		area.OK("statistics", "publish_allocation_metrics is set")
	}
	config := api.DefaultConfig()
	client, err := api.NewClient(config)
	if err != nil {
		area.Fail("agent", "correct NOMAD_ADDR and the other variables of Nomad's command line", "%v", err)
		return
	}
	id, ok := diagnoseAgent(ctx, client, config.Address, area)
	if !ok {
		return
	}
	node, _, err := client.Nodes().Info(id, (&api.QueryOptions{AllowStale: true}).WithContext(ctx))
	if err != nil {
		area.Fail("node", "is a server reachable? nomad server members", "the servers do not know node %s: %v", id, err)
		return
	}
	diagnoseNode(node, area)
	if !alone {
		diagnoseDrivers(node, area)
	}
	diagnoseDevices(node, area)
	diagnoseBatchQueue(ctx, client, node, area)
}

// diagnoseBatchQueue looks for a queue of Nomad's own in the node's pool, as Nomad has them from 2.1 on.
func diagnoseBatchQueue(ctx context.Context, client *api.Client, node *api.Node, area *doctor.Area) {
	const check = "batch queue"
	queue, err := nomad.NewClient(client).BatchQueue(ctx, node.NodePool)
	switch {
	case err != nil:
		area.Warn(check, "set NOMAD_TOKEN to a token that may list jobs", "%v", err)
	case queue != nil:
		area.Warn(check, "remove batch_queue from the node pool, or move the GPUs to another", "node pool %s has one of Nomad's (%s) with %d jobs: a batch job that waits for GPUs there stops those behind it, and the placement service refuses new ones",
			node.NodePool, queue.Type, queue.Jobs)
	}
}

// diagnoseAgent asks the agent who it is, and returns its node's ID.
func diagnoseAgent(ctx context.Context, client *api.Client, address string, area *doctor.Area) (id string, ok bool) {
	const check = "agent"
	var self api.AgentSelf
	_, err := client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	var refused api.UnexpectedResponseError
	switch {
	case errors.As(err, &refused) && refused.StatusCode() == http.StatusForbidden:
		area.Fail(check, "set NOMAD_TOKEN to a token with agent { policy = \"read\" } and node { policy = \"read\" }", "%s refuses: %s", address, strings.TrimSpace(refused.Body()))
		return "", false
	case err != nil:
		area.Fail(check, "systemctl status nomad; NOMAD_ADDR says where it is, NOMAD_CACERT whose certificates are good", "%s does not answer: %v", address, err)
		return "", false
	}
	id = self.Stats["client"]["node_id"]
	if id == "" {
		area.Fail(check, "set client { enabled = true }, or run this where Nomad's client is", "the agent at %s is not a client", address)
		return "", false
	}
	if build := buildOf(&self); version.WasTested(build) {
		area.OK(check, "%s, version %s", address, build)
	} else {
		area.Warn(check, "docs/design/testing.md says what ran on which release", "%s, version %q: tests ran on Nomad %s to %s", address, build, version.OldestNomad, version.NewestNomad)
	}
	return id, true
}

// buildOf is an agent's version. Only servers are members with a tag for it.
func buildOf(self *api.AgentSelf) string {
	told, _ := self.Config["Version"].(map[string]any)
	build, _ := told["Version"].(string)
	if pre, _ := told["VersionPrerelease"].(string); pre != "" {
		build += "-" + pre
	}
	return build
}

func diagnoseNode(node *api.Node, area *doctor.Area) {
	const check = "node"
	switch {
	case node.Status != api.NodeStatusReady:
		area.Fail(check, "look at Nomad's log: journalctl -u nomad", "%s is %s: %s", node.Name, node.Status, node.StatusDescription)
	case node.SchedulingEligibility != api.NodeSchedulingEligible:
		area.Warn(check, "nomad node eligibility -enable "+node.ID, "%s takes no new work", node.Name)
	default:
		area.OK(check, "%s is ready (%s)", node.Name, node.ID)
	}
}

func diagnoseDrivers(node *api.Node, area *doctor.Area) {
	const check = "driver containerd"
	info := node.Drivers[driver.Name]
	switch {
	case info == nil || !info.Detected:
		area.Fail(check, "is "+driverconfig.PluginName+" in plugin_dir, and enabled? journalctl -u nomad", "the client has no such driver")
	case !info.Healthy:
		area.Fail(check, "systemctl status containerd", "%s", info.HealthDescription)
	default:
		area.OK(check, "%s", info.HealthDescription)
	}
}

// diagnoseDevices looks for a group that is ours: they have a grade.
func diagnoseDevices(node *api.Node, area *doctor.Area) {
	const check = "devices"
	ours, others := 0, []string{}
	if node.NodeResources != nil {
		for _, group := range node.NodeResources.Devices {
			name := fmt.Sprintf("%s/%s/%s", group.Vendor, group.Type, group.Name)
			if _, found := group.Attributes[gpu.AttrGrade]; !found {
				others = append(others, name)
				continue
			}
			ours++
			if healthy := healthyInstances(group); healthy < len(group.Instances) {
				area.Warn(name, "nomad node status -verbose says why", "%d of %d instances take work", healthy, len(group.Instances))
			} else {
				area.OK(name, "%d instances", healthy)
			}
		}
	}
	if ours == 0 {
		area.Fail(check, "look above for why the plugin sees none, and into journalctl -u nomad", "Nomad sees no GPU of this node that this plugin offers")
	}
	if len(others) > 0 {
		area.Warn(check, "are they the same GPUs? Then Nomad hands them out twice: remove the other plugin", "another plugin offers %s", strings.Join(others, ", "))
	}
}

func healthyInstances(group *api.NodeDeviceResource) int {
	healthy := 0
	for _, i := range group.Instances {
		if i.Healthy {
			healthy++
		}
	}
	return healthy
}

// decisions is where the placement service keeps its decisions.
const decisions = "nomad-gpu/"

// alloc is what of an allocation concerns its GPUs. The job itself stays out: its
// environment and templates are its author's.
type alloc struct {
	ID, Namespace, JobID, TaskGroup, ClientStatus, DesiredStatus string
	Tasks                                                        map[string]*api.TaskState
	Devices                                                      map[string][]*api.AllocatedDeviceResource
}

// nomad adds what Nomad says of this node, as far as the token allows it.
func (b *bundle) nomad(ctx context.Context) {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		b.lacks("nomad", err)
		return
	}
	stale := (&api.QueryOptions{AllowStale: true}).WithContext(ctx)
	var self api.AgentSelf
	if _, err := client.Raw().Query("/v1/agent/self", &self, stale); err != nil {
		b.lacks("nomad", err)
		return
	}
	id := self.Stats["client"]["node_id"]
	node, _, err := client.Nodes().Info(id, stale)
	if err == nil {
		node.Meta = nil
	}
	b.addJSON("nomad/node.json", node, err)
	all, _, err := client.Nodes().Allocations(id, stale)
	b.addJSON("nomad/allocations.json", withDevices(all), err)
	items, err := readDecisions(client, stale)
	b.addJSON("nomad/decisions.json", items, err)
}

// withDevices are the allocations that hold any.
func withDevices(all []*api.Allocation) []alloc {
	var some []alloc
	for _, a := range all {
		devices := map[string][]*api.AllocatedDeviceResource{}
		if a.AllocatedResources != nil {
			for task, r := range a.AllocatedResources.Tasks {
				if len(r.Devices) > 0 {
					devices[task] = r.Devices
				}
			}
		}
		if len(devices) > 0 {
			some = append(some, alloc{a.ID, a.Namespace, a.JobID, a.TaskGroup, a.ClientStatus, a.DesiredStatus, a.TaskStates, devices})
		}
	}
	return some
}

func readDecisions(client *api.Client, options *api.QueryOptions) (map[string]api.VariableItems, error) {
	list, _, err := client.Variables().PrefixList(decisions, options)
	if err != nil {
		return nil, err
	}
	found := map[string]api.VariableItems{}
	for _, v := range list {
		items, _, err := client.Variables().GetVariableItems(v.Path, options)
		if err != nil && !errors.Is(err, api.ErrVariablePathNotFound) {
			return nil, err
		}
		found[v.Path] = items
	}
	return found, nil
}
