// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/hashicorp/nomad/drivers/shared/resolvconf"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// networkFiles writes the task's hosts and resolver files, and returns their
// mounts.
func (p *startPlan) networkFiles() ([]taskconfig.Mount, error) {
	var mounts []taskconfig.Mount
	if p.cfg.DNS != nil || p.config.HostDNS {
		dns, err := resolvconf.GenerateDNSMount(p.stage.Dir(), p.cfg.DNS)
		if err != nil {
			return nil, fmt.Errorf("write resolv.conf: %w", err)
		}
		mounts = append(mounts, bind(dns.HostPath, dns.TaskPath, true, "rprivate"))
	}
	content, err := p.hostsFile()
	if err != nil {
		return nil, err
	}
	hosts, err := p.stage.Write("hosts", []byte(content))
	if err != nil {
		return nil, err
	}
	return append(mounts, bind(hosts, "/etc/hosts", false, "rprivate")), nil
}

const (
	localAddress = "127.0.0.1"
	localHosts   = localAddress + ` localhost
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
`
)

// hostsFile is the content of /etc/hosts. A task finds its own name there, and on
// the host's network the host's names.
func (p *startPlan) hostsFile() (string, error) {
	content, address, names := localHosts, localAddress, []string{hostnameOf(p.cfg, p.config)}
	if n := p.cfg.NetworkIsolation; n != nil && n.HostsConfig != nil && n.HostsConfig.Address != "" {
		address = n.HostsConfig.Address
		if name := n.HostsConfig.Hostname; name != names[0] {
			names = append(names, name)
		}
	}
	if n := p.record.Network; n != nil {
		address = n.IP
	}
	if host, err := os.ReadFile("/etc/hosts"); err == nil && p.config.UsesHostNetwork() {
		content = strings.TrimRight(string(host), "\n") + "\n"
	}
	content += address + " " + strings.Join(names, " ") + "\n"
	for _, host := range p.config.Hosts() {
		if host.IsGateway() {
			var err error
			if host.Address, err = p.gateway(); err != nil {
				return "", fmt.Errorf("extra_hosts: %s:%s: %w", host.Name, taskconfig.HostGateway, err)
			}
		}
		content += host.Address + " " + host.Name + "\n"
	}
	return content, nil
}

// hostnameOf is the task's name for itself: what the author wrote, else the
// group's, else the host's on its network.
func hostnameOf(cfg *drivers.TaskConfig, config taskconfig.Config) string {
	if config.Hostname != "" {
		return config.Hostname
	}
	if n := cfg.NetworkIsolation; n != nil && n.HostsConfig != nil && n.HostsConfig.Hostname != "" {
		return n.HostsConfig.Hostname
	}
	if name, err := os.Hostname(); err == nil && config.UsesHostNetwork() {
		return name
	}
	if len(cfg.AllocID) >= 12 {
		return cfg.AllocID[:8]
	}
	return cfg.Name
}

// gateway is the address at which a task reaches the host.
func (p *startPlan) gateway() (string, error) {
	switch {
	case p.config.UsesHostNetwork():
		return localAddress, nil
	case p.namespaces.Network == "":
		return "", fmt.Errorf("the task has no network but loopback; give the group a network, or the task network_mode = \"bridge\"")
	}
	var routes []byte
	err := ns.WithNetNSPath(p.namespaces.Network, func(ns.NetNS) (err error) {
		routes, err = os.ReadFile("/proc/thread-self/net/route")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read routes: %w", err)
	}
	return defaultRoute(string(routes))
}

// defaultRoute finds the gateway in the kernel's table of IPv4 routes, whose
// columns are interface, destination and gateway, as hexadecimal numbers in the
// machine's own byte order.
func defaultRoute(table string) (string, error) {
	for _, line := range strings.Split(table, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "00000000" || fields[2] == "00000000" {
			continue
		}
		raw, err := hex.DecodeString(fields[2])
		if err != nil || len(raw) != 4 {
			return "", fmt.Errorf("read routes: gateway %q is not an address", fields[2])
		}
		var address [4]byte
		binary.NativeEndian.PutUint32(address[:], binary.BigEndian.Uint32(raw))
		return netip.AddrFrom4(address).String(), nil
	}
	return "", fmt.Errorf("the task's network has no default route")
}
