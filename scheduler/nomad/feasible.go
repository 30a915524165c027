// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Targets that the service adds to those of a node, for what Nomad asks of a node without a
// constraint in the job. Each is a set. No constraint of a user's can name them: Nomad has no
// targets that begin so.
const (
	// TargetDrivers are the drivers that are detected and healthy; [AnyDriver] where the node
	// does not say.
	TargetDrivers = "nomad.drivers"
	// TargetHostVolumes are the host volumes of a node, TargetWritableVolumes those of them
	// that are not read-only. What a dynamic host volume can do beyond that is not on the node.
	TargetHostVolumes     = "nomad.host_volumes"
	TargetWritableVolumes = "nomad.host_volumes.writable"
	// TargetCSIPlugins are the CSI plugins that mount volumes on the node and are healthy.
	TargetCSIPlugins = "nomad.csi_plugins"
)

// AnyDriver stands for all drivers, on a node that names none.
const AnyDriver = "*"

// addFeasibility adds what Nomad's own checks go by: see DriverChecker, HostVolumeChecker and
// CSIVolumeChecker in its scheduler/feasible.
func addFeasibility(targets map[string]string, n *api.Node) {
	var readable, writable, plugins []string
	for name, v := range n.HostVolumes {
		if v == nil {
			continue
		}
		readable = append(readable, name)
		if !v.ReadOnly {
			writable = append(writable, name)
		}
	}
	for id, p := range n.CSINodePlugins {
		if p != nil && p.Healthy {
			plugins = append(plugins, id)
		}
	}
	for target, names := range map[string][]string{
		TargetDrivers: healthyDrivers(n), TargetHostVolumes: readable, TargetWritableVolumes: writable, TargetCSIPlugins: plugins,
	} {
		if len(names) > 0 {
			slices.Sort(names)
			targets[target] = strings.Join(names, ",")
		}
	}
}

// healthyDrivers are the drivers that Nomad starts tasks with.
func healthyDrivers(n *api.Node) []string {
	if n.Drivers == nil {
		return []string{AnyDriver}
	}
	healthy := map[string]bool{}
	for key, value := range n.Attributes { // as clients before Nomad 0.8 said it; what a driver says itself counts
		if name, of := strings.CutPrefix(key, "driver."); of && !strings.Contains(name, ".") {
			healthy[name], _ = strconv.ParseBool(value)
		}
	}
	for name, d := range n.Drivers {
		healthy[name] = d != nil && d.Detected && d.Healthy
	}
	maps.DeleteFunc(healthy, func(_ string, ok bool) bool { return !ok })
	return slices.Collect(maps.Keys(healthy))
}
