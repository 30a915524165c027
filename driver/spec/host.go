package spec

import (
	"fmt"
	"net/netip"
	"strings"
)

// HostGateway stands for the address at which a task reaches the host.
const HostGateway = "host-gateway"

// Host is an entry for /etc/hosts.
type Host struct{ Name, Address string }

// IsGateway reports whether the entry's address is still to be found.
func (h Host) IsGateway() bool { return h.Address == HostGateway }

// Hosts returns the entries of extra_hosts, each NAME:ADDRESS, of a config that
// was checked.
func (c Config) Hosts() []Host {
	hosts := make([]Host, 0, len(c.ExtraHosts))
	for _, entry := range c.ExtraHosts {
		name, address, _ := strings.Cut(entry, ":")
		hosts = append(hosts, Host{name, strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")})
	}
	return hosts
}

func (c Config) checkHosts() error {
	for i, h := range c.Hosts() {
		address, err := netip.ParseAddr(h.Address)
		valid := err == nil && address.Zone() == "" || h.IsGateway()
		if !valid || h.Name == "" || strings.ContainsAny(h.Name, " \t\r\n#") {
			return fmt.Errorf("extra_hosts: %q is not NAME:ADDRESS, such as \"postgres:10.0.0.5\" or \"host.docker.internal:%s\"", c.ExtraHosts[i], HostGateway)
		}
	}
	return nil
}
