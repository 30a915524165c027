// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// standing is where a task stands, as its framework needs to know.
func (g group) standing(ask Ask, a TaskAsk) framework.Group {
	s := ask.standing()
	s.Task = a.Task
	if len(g.header.Networks) > 0 {
		s.Network = g.header.Networks[0].Mode
	}
	return s
}

// setUpTask adds a framework's environment and templates to a task. Templates
// of an earlier admission are replaced: they are known by where they are
// written, and its variables by their values, before.
func setUpTask(o *object, s framework.Setup, before map[string]string) error {
	if err := setUpEnv(o, s, before); err != nil {
		return err
	}
	if len(s.Templates) == 0 {
		return nil
	}
	templates, err := without(o.get("Templates"), func(raw json.RawMessage) bool {
		var have struct{ DestPath string }
		return json.Unmarshal(raw, &have) == nil &&
			slices.ContainsFunc(s.Templates, func(t framework.Template) bool { return t.DestPath == have.DestPath })
	})
	if err != nil {
		return fmt.Errorf("templates: %w", err)
	}
	for _, t := range s.Templates {
		templates = append(templates, encode(t))
	}
	o.set("Templates", rawArray(templates))
	return nil
}

// shareNetwork puts a task of the containerd driver on the host's network: in a
// group of network mode "host" that driver gives every task a network of its
// own, where no other rank could reach it. What the author chose stands.
func shareNetwork(o *object, s framework.Setup) error {
	config, err := parseMap(o.get("Config"))
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if !s.HostNetwork || config.get("network_mode") != nil || config.get("host_network") != nil {
		return nil
	}
	config.set("network_mode", encode("host"))
	o.set("Config", config.raw())
	return nil
}

func setUpEnv(o *object, s framework.Setup, before map[string]string) error {
	env, err := parseMap(o.get("Env"))
	if err != nil {
		return fmt.Errorf("env: %w", err)
	}
	have := map[string]string{}
	for _, m := range env.members {
		var value string
		if err := json.Unmarshal(m.value, &value); err != nil {
			return fmt.Errorf("env %q: %w", m.name, err)
		}
		if ours, both := s.Env[m.name]; both { // an earlier admission extended it
			value = strings.TrimSuffix(value, ":"+ours)
			if told, known := before[m.name]; known && told == value {
				continue // it is the number of ranks before the count was changed
			}
		}
		have[m.name] = value
	}
	merged := s.Merge(have)
	for _, key := range sortedKeys(s.Env) {
		env.set(key, encode(merged[key]))
	}
	o.set("Env", env.raw())
	return nil
}

// setUpGroup adds the service and the port through which ranks find each other.
func setUpGroup(o *object, s framework.Setup) error {
	if s.Service != nil {
		services, err := without(o.get("Services"), func(raw json.RawMessage) bool {
			var have struct{ Name string }
			return json.Unmarshal(raw, &have) == nil && have.Name == s.Service.Name
		})
		if err != nil {
			return fmt.Errorf("services: %w", err)
		}
		o.set("Services", rawArray(append(services, encode(s.Service))))
	}
	if s.Port == nil {
		return nil
	}
	return addPort(o, *s.Port)
}

// addPort adds a dynamic port to the group's network, and the network where
// there is none.
func addPort(o *object, port framework.Port) error {
	networks, err := parseArray(o.get("Networks"))
	if err != nil {
		return fmt.Errorf("networks: %w", err)
	}
	if len(networks) == 0 {
		networks = []json.RawMessage{json.RawMessage(`{"Mode":"host"}`)}
	}
	network, err := parseObject(networks[0])
	if err != nil {
		return fmt.Errorf("networks: %w", err)
	}
	ports, err := without(network.get("DynamicPorts"), func(raw json.RawMessage) bool {
		var have struct{ Label string }
		return json.Unmarshal(raw, &have) == nil && have.Label == port.Label
	})
	if err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	network.set("DynamicPorts", rawArray(append(ports, encode(port))))
	networks[0] = network.raw()
	o.set("Networks", rawArray(networks))
	return nil
}
