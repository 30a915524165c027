// SPDX-License-Identifier: MPL-2.0

package view

import "fmt"

// Fits is what would start now in place of what a group asks for.
type Fits struct {
	// Ask is the largest amount, in the words of the request; empty where nothing that is
	// smaller would start either.
	Ask string `json:"ask"`
	// Allocs is for how many allocs at once, Nodes how many nodes have room for one.
	Allocs int `json:"allocs"`
	Nodes  int `json:"nodes"`
}

// Text is the same for people.
func (f *Fits) Text() string {
	nodes := fmt.Sprintf("%d nodes", f.Nodes)
	if f.Nodes == 1 {
		nodes = "1 node"
	}
	switch {
	case f.Ask == "":
		return "nothing smaller would start now"
	case f.Allocs > 1:
		return fmt.Sprintf("%d allocs of %s each would start now, on %s", f.Allocs, f.Ask, nodes)
	}
	return fmt.Sprintf("%s would start now on %s", f.Ask, nodes)
}
