// SPDX-License-Identifier: MPL-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/nomad/structs"
)

// Bridge is one of the driver's bridges on the host. There is one, until the
// operator changes bridge_subnet: tasks that run keep their addresses and their
// bridge, and new ones get another.
type Bridge struct {
	Name string
	// Subnet is that of its address, invalid for none.
	Subnet netip.Prefix
	// Unused is set where no container is on it, and its address can be changed.
	Unused bool
}

// maxBridges is how many changes of bridge_subnet tasks can outlive.
const maxBridges = 16

// Bridges are the bridges that there are.
func Bridges() ([]Bridge, error) {
	var all []Bridge
	for i := range maxBridges {
		b := Bridge{Name: fmt.Sprintf("nomad-gpu%d", i)}
		members, err := os.ReadDir(filepath.Join("/sys/class/net", b.Name, "brif"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for bridges: %w", err)
		}
		b.Unused = len(members) == 0
		if b.Subnet, err = subnetOf(b.Name); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func subnetOf(name string) (netip.Prefix, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("look for bridges: %w", err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("look for the address of bridge %s: %w", name, err)
	}
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
			return prefix.Masked(), nil
		}
	}
	return netip.Prefix{}, nil
}

// chooseBridge returns the bridge for a subnet.
func chooseBridge(subnet string) (Bridge, error) {
	want, err := netip.ParsePrefix(subnet)
	if err != nil {
		return Bridge{}, fmt.Errorf("bridge_subnet: %w", err)
	}
	have, err := Bridges()
	if err != nil {
		return Bridge{}, err
	}
	return bridgeFor(want.Masked(), have)
}

// bridgeFor prefers the bridge of the subnet, then one that is unused, and of
// those one that would be in the way, then a new one. Two bridges of overlapping
// subnets would each get the other's packets.
func bridgeFor(want netip.Prefix, have []Bridge) (Bridge, error) {
	if i := slices.IndexFunc(have, func(b Bridge) bool { return b.Subnet == want }); i >= 0 {
		return Bridge{Name: have[i].Name, Subnet: want}, nil
	}
	var free *Bridge
	for i, b := range have {
		overlaps := b.Subnet.IsValid() && b.Subnet.Overlaps(want)
		if overlaps && !b.Unused {
			return Bridge{}, structs.NewRecoverableError(fmt.Errorf(
				"bridge_subnet %s overlaps %s, where tasks still run from before it was changed; it can be used when they have ended", want, b.Subnet), true)
		}
		if b.Unused && (free == nil || overlaps) {
			free = &have[i]
		}
	}
	if free != nil {
		return *free, nil
	}
	for i := range maxBridges {
		name := fmt.Sprintf("nomad-gpu%d", i)
		if !slices.ContainsFunc(have, func(b Bridge) bool { return b.Name == name }) {
			return Bridge{Name: name}, nil
		}
	}
	return Bridge{}, structs.NewRecoverableError(fmt.Errorf("bridge_subnet was changed %d times while tasks ran; restart the oldest ones", maxBridges), true)
}
