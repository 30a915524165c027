package constraint

import (
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
	parts := strings.SplitN(name, "/", 3)
	switch len(parts) {
	case 1:
		return parts[0] == "" || parts[0] == d.Type
	case 2:
		return (parts[0] == "" || parts[0] == d.Vendor) && (parts[1] == "" || parts[1] == d.Type)
	}
	return (parts[0] == "" || parts[0] == d.Vendor) && (parts[1] == "" || parts[1] == d.Type) && (parts[2] == "" || parts[2] == d.Name)
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
