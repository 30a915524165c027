// SPDX-License-Identifier: MPL-2.0

package network

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

func TestBridgeOfASubnet(t *testing.T) {
	at := func(name, subnet string, unused bool) Bridge {
		b := Bridge{Name: name, Unused: unused}
		if subnet != "" {
			b.Subnet = netip.MustParsePrefix(subnet)
		}
		return b
	}
	const want = "10.1.0.0/24"
	for _, test := range []struct {
		name  string
		have  []Bridge
		gets  string
		force bool
	}{
		{"the first", nil, "nomad-gpu0", false},
		{"the same subnet, in use", []Bridge{at("nomad-gpu0", want, false)}, "nomad-gpu0", false},
		{"the same subnet, not the first", []Bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", want, true)}, "nomad-gpu1", false},
		{"another, unused", []Bridge{at("nomad-gpu0", "10.2.0.0/24", true)}, "nomad-gpu0", true},
		{"another, in use", []Bridge{at("nomad-gpu0", "10.2.0.0/24", false)}, "nomad-gpu1", false},
		{"a gap", []Bridge{at("nomad-gpu1", "10.2.0.0/24", false)}, "nomad-gpu0", false},
		{"of two unused the one in the way", []Bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", "10.1.0.0/16", true)}, "nomad-gpu1", true},
		{"one without an address", []Bridge{at("nomad-gpu0", "", true)}, "nomad-gpu0", true},
	} {
		got, err := bridgeFor(netip.MustParsePrefix(want), test.have)
		must.NoError(t, err, must.Sprint(test.name))
		must.Eq(t, test.gets, got.Name, must.Sprint(test.name))
		must.Eq(t, test.force, got.Unused, must.Sprint(test.name))
	}
	_, err := bridgeFor(netip.MustParsePrefix(want), []Bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", "10.1.0.128/25", false)})
	must.ErrorContains(t, err, "overlaps 10.1.0.128/25")
	must.True(t, structs.IsRecoverable(err))
	var all []Bridge
	for i := range maxBridges {
		all = append(all, at("nomad-gpu"+strconv.Itoa(i), "10.3."+strconv.Itoa(i)+".0/24", false))
	}
	_, err = bridgeFor(netip.MustParsePrefix(want), all)
	must.ErrorContains(t, err, "changed 16 times")
}
