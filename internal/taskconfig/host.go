// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
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

func (c Config) checkHosts(m *Mistakes) {
	for i, h := range c.Hosts() {
		address, err := netip.ParseAddr(h.Address)
		valid := err == nil && address.Zone() == "" || h.IsGateway()
		if !valid || !IsWord(h.Name) {
			m.Add("extra_hosts", "%q is not NAME:ADDRESS, such as \"postgres:10.0.0.5\" or \"host.docker.internal:%s\"", c.ExtraHosts[i], HostGateway)
		}
	}
}

// IsLine reports whether a text stays in its line of /etc/resolv.conf, and IsWord
// whether it is one word of a line in /etc/hosts.
func IsLine(s string) bool {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	return utf8.ValidString(s) && !strings.ContainsFunc(s, odd)
}

func IsWord(s string) bool { return s != "" && IsLine(s) && !strings.ContainsAny(s, " #") }
