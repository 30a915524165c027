// SPDX-License-Identifier: MPL-2.0

package constraint

import (
	"fmt"
	"slices"
	"strings"
)

// Device is a group of device instances as Nomad sees it.
type Device struct {
	Vendor, Type, Name string
	// IDs are those of all its instances, in Nomad's order.
	IDs        []string
	Attributes map[string]Value
}

// Named reports whether a device block's name means the group: type, vendor/type
// or vendor/type/name.
func (d *Device) Named(name string) bool {
	first, rest, more := strings.Cut(name, "/")
	if !more {
		return first == "" || first == d.Type
	}
	second, third, _ := strings.Cut(rest, "/")
	return (first == "" || first == d.Vendor) && (second == "" || second == d.Type) && (third == "" || third == d.Name)
}

// Meets reports whether the group meets all conditions.
func (d *Device) Meets(list []Constraint) bool {
	return !slices.ContainsFunc(list, func(c Constraint) bool { return !c.OnDevice(d) })
}

// OnDevice evaluates the condition on a device group.
func (c Constraint) OnDevice(d *Device) bool {
	left, leftFound := d.resolve(c.Left)
	right, rightFound := d.resolve(c.Right)
	switch c.Operand {
	case "distinct_hosts", "distinct_property":
		return true
	case "is_set":
		return leftFound
	case "is_not_set":
		return !leftFound
	case "!=", "not":
		if !leftFound || !rightFound {
			return leftFound != rightFound
		}
		order, comparable := left.compare(right)
		return comparable && order != 0
	}
	if !leftFound || !rightFound {
		return false
	}
	switch c.Operand {
	case "=", "==", "is", "", "<", "<=", ">", ">=":
		order, comparable := left.compare(right)
		return comparable && inOrder(c.Operand, order)
	case "version", "semver":
		if left.kind == isInt {
			left = Text(left.digits())
		}
	}
	return left.kind == isText && right.kind == isText && matches(c.Operand, left.text, right.text)
}

// String is the condition as a job file has it, in one line.
func (c Constraint) String() string {
	if c.Operand == "is_set" || c.Operand == "is_not_set" {
		return c.Left + " " + c.Operand
	}
	operand := c.Operand
	if operand == "" {
		operand = "="
	}
	return fmt.Sprintf("%s %s %s", c.Left, operand, c.Right)
}

// Has says what a group has of what a condition is about; nothing where that is another of each
// device.
func (d *Device) Has(c Constraint) string {
	target := c.Left
	if !strings.HasPrefix(target, "${") {
		target = c.Right
	}
	switch value, found := d.resolve(target); {
	case target == "${device.ids}", strings.HasPrefix(target, "${device.attr.unique."):
		return ""
	case !found:
		return ": there is none"
	default:
		return ": it is " + value.String()
	}
}

// OnInstance evaluates what the condition says of one instance of a group that meets
// it. Nomad compares the other side of ${device.ids} with the instance's ID, always
// on the left, and asks nothing else.
func (c Constraint) OnInstance(d *Device, id string) bool {
	const ids = "${device.ids}"
	other := c.Right
	switch {
	case c.Left == ids:
	case c.Right == ids:
		other = c.Left
	default:
		return true
	}
	if value, found := d.resolve(other); found {
		return Constraint{"${device.attr.other}", c.Operand, ids}.OnDevice(&Device{IDs: []string{id}, Attributes: map[string]Value{"other": value}})
	}
	return false
}

// resolve is the value that a target stands for on a device group. Text that is
// no target is read as Nomad reads attributes: numbers, with units, are numbers.
func (d *Device) resolve(target string) (Value, bool) {
	if !strings.HasPrefix(target, "${") {
		return Parse(target), true
	}
	switch target {
	case "${device.ids}":
		return Text(strings.Join(d.IDs, ",")), true
	case "${device.model}":
		return Text(d.Name), true
	case "${device.vendor}":
		return Text(d.Vendor), true
	case "${device.type}":
		return Text(d.Type), true
	}
	name, isAttribute := strings.CutPrefix(target, "${device.attr.")
	if !isAttribute {
		return Value{}, false
	}
	value, found := d.Attributes[strings.TrimSuffix(name, "}")]
	return value, found
}
