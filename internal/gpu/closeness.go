// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Closeness says which of a machine's GPUs are near each other, by UUID, so that
// it means the same for a group of one GPU and for one of many.
type Closeness []Neighborhood

// Neighborhood is a set of GPUs that are equally near to each other.
type Neighborhood struct {
	// By is what joins them: NearNVLink, NearNVSwitch, NearXGMI, NearHCCS or NearNUMA.
	By string
	// N is the number of links between two of them, or from each to the
	// switches; of a NUMA node it is the node's number.
	N     int
	UUIDs []string // sorted
}

// What joins the GPUs of a neighborhood.
const (
	NearNVLink   = "nvlink"
	NearNVSwitch = "nvswitch"
	NearXGMI     = "xgmi"
	NearHCCS     = "hccs"
	NearNUMA     = "numa"
)

var nears = []string{NearNVLink, NearNVSwitch, NearXGMI, NearHCCS, NearNUMA}

// String is the closeness as an attribute, in an order that depends on nothing
// but its content:
//
//	numa:0=GPU-a,GPU-b;nvlink:4=GPU-a,GPU-b
func (c Closeness) String() string {
	parts := make([]string, 0, len(c))
	for _, n := range c.sorted() {
		parts = append(parts, fmt.Sprintf("%s:%d=%s", n.By, n.N, strings.Join(n.UUIDs, ",")))
	}
	return strings.Join(parts, ";")
}

func (c Closeness) sorted() Closeness {
	all := make(Closeness, 0, len(c))
	for _, n := range c {
		n.UUIDs = slices.Sorted(slices.Values(n.UUIDs))
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Neighborhood) int {
		return cmp.Or(strings.Compare(a.By, b.By), cmp.Compare(a.N, b.N), slices.Compare(a.UUIDs, b.UUIDs))
	})
	return all
}

// ParseCloseness reads the attribute. A neighborhood of a kind that this release
// does not know is left out, so that a later plugin can add one.
func ParseCloseness(text string) (Closeness, error) {
	var c Closeness
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		head, members, found := strings.Cut(part, "=")
		by, number, found2 := strings.Cut(head, ":")
		n, err := strconv.Atoi(number)
		if !found || !found2 || err != nil || n < 0 || members == "" {
			return nil, fmt.Errorf("closeness %q: %q is not kind:number=UUID,UUID", text, part)
		}
		if slices.Contains(nears, by) {
			c = append(c, Neighborhood{By: by, N: n, UUIDs: strings.Split(members, ",")})
		}
	}
	return c.sorted(), nil
}

// Around is the part of it that concerns some GPUs.
func (c Closeness) Around(uuids ...string) Closeness {
	var part Closeness
	for _, n := range c {
		if slices.ContainsFunc(n.UUIDs, func(uuid string) bool { return slices.Contains(uuids, uuid) }) {
			part = append(part, n)
		}
	}
	return part
}

// LinkPeers are the GPUs that links join to one, directly or by switches.
func (c Closeness) LinkPeers(uuid string) []string {
	var peers []string
	for _, n := range c.Around(uuid) {
		if n.By == NearNUMA {
			continue
		}
		for _, other := range n.UUIDs {
			if other != uuid {
				peers = append(peers, other)
			}
		}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}

// NUMANode is the node of a GPU; false where it is not known.
func (c Closeness) NUMANode(uuid string) (int, bool) {
	for _, n := range c.Around(uuid) {
		if n.By == NearNUMA {
			return n.N, true
		}
	}
	return 0, false
}
