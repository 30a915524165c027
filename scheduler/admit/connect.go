// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"fmt"
	"slices"
	"strings"
)

// connectKinds begin the kinds of the tasks that Nomad adds to a group for Consul Connect. Those of
// connect-native are the author's own.
var connectKinds = []string{"connect-proxy:", "connect-ingress:", "connect-terminating:", "connect-mesh:"}

// checkConnect refuses GPUs of the tasks of Connect. Nomad adds them to the job when it has been
// admitted, and merges into them what a service's sidecar_task says: its devices and its
// configuration come in the place of the decision.
func (g *group) checkConnect(devices []string) error {
	services, err := parseArray(g.object.get("Services"))
	if err != nil {
		return err
	}
	for _, raw := range services {
		side, err := sidecarOf(raw, devices)
		if err != nil {
			return fmt.Errorf("group %q: sidecar_task: %w", g.name, err)
		}
		if what := side.ofGPU(); what != "" {
			return connectRefusal(g.name, fmt.Sprintf("a sidecar_task with %s", what))
		}
	}
	for _, t := range g.tasks {
		var kind string
		if err := t.object.decode("Kind", &kind); err != nil {
			return err
		}
		added := slices.ContainsFunc(connectKinds, func(prefix string) bool { return strings.HasPrefix(kind, prefix) })
		if what := t.ofGPU(); added && what != "" {
			return connectRefusal(g.name, fmt.Sprintf("task %q of kind %q with %s", t.header.Name, kind, what))
		}
	}
	return nil
}

func connectRefusal(group, what string) error {
	return &Refusal{Status: unprocessable, Text: fmt.Sprintf("group %q: %s is not valid: Nomad fills in the tasks of Connect after the admission", group, what),
		Details: []string{"ask for GPUs in another task of the group"}}
}

// sidecarOf is what a service says of the task that Nomad adds for it.
func sidecarOf(service []byte, devices []string) (task, error) {
	o, err := parseObject(service)
	if err != nil {
		return task{}, err
	}
	connect, err := parseObject(o.get("Connect"))
	if err != nil || isNull(connect.get("SidecarTask")) {
		return task{}, err
	}
	return readTask(connect.get("SidecarTask"), devices)
}

// ofGPU is what a task says of GPUs; empty where it says nothing.
func (t task) ofGPU() string {
	if len(t.blocks) > 0 {
		return fmt.Sprintf("device %q", t.blocks[0].Name)
	}
	for _, key := range keys {
		if _, found := t.header.Meta[key]; found {
			return "meta " + key
		}
	}
	config, err := parseMap(t.object.get("Config"))
	if err == nil && slices.ContainsFunc(config.members, func(m member) bool { return m.name == "gpu" && !isNull(m.value) }) {
		return "a gpu block"
	}
	return ""
}
