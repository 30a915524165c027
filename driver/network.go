// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"os"
	"strings"

	gocni "github.com/containerd/go-cni"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// networkSysctls are the defaults for networks, without those that this kernel
// does not have: a container with such a one would not start.
func networkSysctls() map[string]string {
	have := maps.Clone(spec.NetworkSysctls)
	maps.DeleteFunc(have, func(key, _ string) bool {
		_, err := os.Stat("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		return err != nil
	})
	return have
}

// portMappings translates the labels in ports into what CNI maps, and into what
// Nomad tells others.
func portMappings(cfg *drivers.TaskConfig, labels []string) ([]gocni.PortMapping, map[string]int, error) {
	var mappings []gocni.PortMapping
	names := map[string]int{}
	for _, label := range labels {
		if cfg.Resources == nil || cfg.Resources.Ports == nil {
			return nil, nil, fmt.Errorf("ports: %q is not a port of the group's network block", label)
		}
		port, ok := cfg.Resources.Ports.Get(label)
		if !ok {
			return nil, nil, fmt.Errorf("ports: %q is not a port of the group's network block", label)
		}
		to := port.To
		if to == 0 {
			to = port.Value
		}
		names[label] = to
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, gocni.PortMapping{HostPort: int32(port.Value), ContainerPort: int32(to), Protocol: protocol, HostIP: port.HostIP})
		}
	}
	return mappings, names, nil
}

// checkNames refuses what would write a second line, or a second word, into the
// files of a task's network. All of it is the author's, also what Nomad hands on.
func checkNames(cfg *drivers.TaskConfig) error {
	if dns := cfg.DNS; dns != nil {
		for key, values := range map[string][]string{"servers": dns.Servers, "searches": dns.Searches, "options": dns.Options} {
			for _, value := range values {
				if !taskconfig.IsLine(value) {
					return fmt.Errorf("dns: %s: %.80q has characters that cannot be printed", key, value)
				}
			}
		}
	}
	if n := cfg.NetworkIsolation; n != nil && n.HostsConfig != nil {
		for _, value := range []string{n.HostsConfig.Hostname, n.HostsConfig.Address} {
			if value != "" && !taskconfig.IsWord(value) {
				return fmt.Errorf("network: hostname %.80q is not one word", value)
			}
		}
	}
	return nil
}
