// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// A network mode that contradicts the group's network is refused by the key that was
// written.
func TestNetworksThatContradictTheGroups(t *testing.T) {
	group := &drivers.TaskConfig{NetworkIsolation: &drivers.NetworkIsolationSpec{Path: "/netns"}}
	alone := &drivers.TaskConfig{NetworkIsolation: &drivers.NetworkIsolationSpec{}}
	for _, row := range []struct {
		cfg    *drivers.TaskConfig
		config spec.Config
		says   string
	}{
		{group, spec.Config{NetworkMode: "host"}, "network_mode: contradicts the group's network"},
		{group, spec.Config{HostNetwork: true}, "host_network: contradicts the group's network"},
		{group, spec.Config{NetworkMode: "bridge", Ports: []string{"http"}}, "network_mode: contradicts the group's network"},
		{group, spec.Config{NetworkMode: "group"}, ""},
		{group, spec.Config{}, ""},
		{alone, spec.Config{NetworkMode: "group"}, `network_mode: "group" needs a network block in the group`},
		{&drivers.TaskConfig{}, spec.Config{NetworkMode: "group"}, `network_mode: "group" needs a network block in the group`},
		{alone, spec.Config{NetworkMode: "host"}, ""},
		{alone, spec.Config{NetworkMode: "bridge", Ports: []string{"http"}}, ""},
		{alone, spec.Config{}, ""},
		{&drivers.TaskConfig{}, spec.Config{Ports: []string{"http"}}, `ports: are mapped by the driver with network_mode "bridge" only`},
	} {
		var m spec.Mistakes
		checkNetwork(row.cfg, row.config, &m)
		if row.says == "" {
			must.NoError(t, m.Err())
		} else {
			must.ErrorContains(t, m.Err(), row.says)
		}
	}
	for _, partner := range []spec.Config{{NetworkMode: "task:web"}, {IPCMode: "task:web"}, {PIDMode: "task:web"}} {
		var m spec.Mistakes
		checkPartners(&drivers.TaskConfig{Name: "web"}, partner, &m)
		must.ErrorContains(t, m.Err(), `"task:web" names the task itself; name another one of the group`)
	}
}
