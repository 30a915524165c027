// SPDX-License-Identifier: MPL-2.0

package constraint

import (
	"cmp"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

type valueKind uint8

const (
	isText valueKind = iota
	isInt
	isFloat
	isBool
)

// Value is a typed value of a device attribute, with a unit where it is a number.
type Value struct {
	kind   valueKind
	text   string
	number int64
	float  float64
	truth  bool
	unit   string
}

// Text, Int, Float and Bool are values of their type.
func Text(s string) Value                { return Value{kind: isText, text: s} }
func Int(n int64, unit string) Value     { return Value{kind: isInt, number: n, unit: unit} }
func Float(x float64, unit string) Value { return Value{kind: isFloat, float: x, unit: unit} }
func Bool(b bool) Value                  { return Value{kind: isBool, truth: b} }

// String is the value as a job file has it.
func (v Value) String() string {
	text := v.text
	switch v.kind {
	case isInt:
		text = strconv.FormatInt(v.number, 10)
	case isFloat:
		text = strconv.FormatFloat(v.float, 'g', -1, 64)
	case isBool:
		text = strconv.FormatBool(v.truth)
	}
	return strings.TrimSpace(text + " " + v.unit)
}

// unit is a unit of Nomad's: a multiple of its base, or with inverse a fraction of it.
type unit struct {
	base    string
	times   int64
	inverse bool
}

var units = map[string]unit{
	"MHz": {"Hz", 1e6, false}, "GHz": {"Hz", 1e9, false},
	"mW": {"W", 1e3, true}, "W": {"W", 1, false}, "kW": {"W", 1e3, false}, "MW": {"W", 1e6, false}, "GW": {"W", 1e9, false},
}

func init() {
	for _, per := range []string{"", "/s"} {
		base := "B" + per
		binary, decimal := int64(1), int64(1)
		for _, prefix := range []string{"K", "M", "G", "T", "P", "E"} {
			binary, decimal = binary<<10, decimal*1000
			units[prefix+"iB"+per] = unit{base, binary, false}
			units[prefix+"B"+per] = unit{base, decimal, false}
		}
		units["kB"+per] = units["KB"+per]
	}
}

// Parse reads a text as Nomad reads a literal: a whole number, a number, each
// with a unit behind it, true or false, or else text.
func Parse(s string) Value {
	if s == "" {
		return Text(s)
	}
	name, number := "", s
	if unicode.IsLetter(rune(s[len(s)-1])) {
		for u := range units {
			if strings.HasSuffix(s, u) && len(u) > len(name) {
				name = u
			}
		}
		if name != "" {
			number = strings.TrimSpace(strings.TrimSuffix(s, name))
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		return Int(n, name)
	}
	if x, err := strconv.ParseFloat(number, 64); err == nil {
		return Float(x, name)
	}
	if b, err := strconv.ParseBool(s); err == nil {
		return Bool(b)
	}
	return Text(s)
}

// compare orders two values; false where Nomad does not compare them: values of
// different types, or with units of different bases.
func (v Value) compare(w Value) (int, bool) {
	own, ownUnit := units[v.unit]
	other, otherUnit := units[w.unit]
	if ownUnit != otherUnit || ownUnit && own.base != other.base {
		return 0, false
	}
	switch {
	case !ownUnit && v.kind == isText:
		return strings.Compare(v.text, w.text), w.kind == isText
	case !ownUnit && v.kind == isBool:
		if v.truth == w.truth {
			return 0, w.kind == isBool
		}
		return 1, w.kind == isBool
	case v.kind == isInt && w.kind == isInt:
		return cmp.Compare(v.base(own, ownUnit), w.base(other, otherUnit)), true
	}
	x, y := v.big(own, ownUnit), w.big(other, otherUnit)
	if x == nil || y == nil {
		return 0, false
	}
	return x.Cmp(y), true
}

// base is a whole number in its base unit.
func (v Value) base(u unit, has bool) int64 {
	switch {
	case !has:
		return v.number
	case u.inverse:
		return v.number / u.times
	}
	return v.number * u.times
}

// precision is Nomad's, of numbers that are not whole.
const precision = 256

// big is a number in its base unit; nil for what is no number.
func (v Value) big(u unit, has bool) *big.Float {
	x := new(big.Float).SetPrec(precision)
	switch {
	case v.kind == isInt:
		x.SetInt64(v.number)
	case v.kind == isFloat && v.float == v.float:
		x.SetFloat64(v.float)
	default:
		return nil
	}
	if !has {
		return x
	}
	times := new(big.Float).SetPrec(precision).SetInt64(u.times)
	if u.inverse {
		times.Quo(big.NewFloat(1).SetPrec(precision), times)
	}
	return x.Mul(x, times)
}

func (v Value) digits() string { return strconv.FormatInt(v.number, 10) }
