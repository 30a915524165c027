// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"testing"

	"github.com/shoenig/test/must"
)

// A network mode that contradicts the group's network is refused by the key that was
// written.
func TestNetworksThatContradictTheGroups(t *testing.T) {
	const group, alone = true, false
	for _, row := range []struct {
		group  bool
		config Config
		says   string
	}{
		{group, Config{NetworkMode: "host"}, "network_mode: contradicts the group's network"},
		{group, Config{HostNetwork: true}, "host_network: contradicts the group's network"},
		{group, Config{NetworkMode: "bridge", Ports: []string{"http"}}, "network_mode: contradicts the group's network"},
		{group, Config{NetworkMode: "group"}, ""},
		{group, Config{}, ""},
		{alone, Config{NetworkMode: "group"}, `network_mode: "group" needs a network block in the group`},
		{alone, Config{NetworkMode: "host"}, ""},
		{alone, Config{NetworkMode: "bridge", Ports: []string{"http"}}, ""},
		{alone, Config{}, ""},
		{alone, Config{Ports: []string{"http"}}, `ports: are mapped by the driver with network_mode "bridge" only`},
	} {
		var m Mistakes
		row.config.checkNetwork(row.group, &m)
		if row.says == "" {
			must.NoError(t, m.Err())
		} else {
			must.ErrorContains(t, m.Err(), row.says)
		}
	}
	for _, partner := range []Config{{NetworkMode: "task:web"}, {IPCMode: "task:web"}, {PIDMode: "task:web"}} {
		var m Mistakes
		partner.checkPartners("web", &m)
		must.ErrorContains(t, m.Err(), `"task:web" names the task itself; name another one of the group`)
	}
}
