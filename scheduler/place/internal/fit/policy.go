// SPDX-License-Identifier: MPL-2.0

package fit

import "fmt"

// Policy says what the best node is.
type Policy uint8

const (
	PolicyDefault  Policy = iota // the planner's own
	PolicyBalanced               // least expected waste, then fullest
	PolicyPack                   // fullest node and GPU first
	PolicySpread                 // emptiest node and GPU first
)

// String is the policy's name in configuration and job meta.
func (p Policy) String() string {
	switch p {
	case PolicyDefault:
		return "DEFAULT"
	case PolicyBalanced:
		return "BALANCED"
	case PolicyPack:
		return "PACK"
	case PolicySpread:
		return "SPREAD"
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// ParsePolicy reads a policy's name; the empty name is PolicyDefault.
func ParsePolicy(name string) (Policy, error) {
	switch name {
	case "":
		return PolicyDefault, nil
	case "BALANCED":
		return PolicyBalanced, nil
	case "PACK":
		return PolicyPack, nil
	case "SPREAD":
		return PolicySpread, nil
	}
	return PolicyDefault, fmt.Errorf("parse policy %q: want BALANCED, PACK or SPREAD", name)
}
