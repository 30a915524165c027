// SPDX-License-Identifier: MPL-2.0

// Package hostile gives tests what an author who wants to control an operator's terminal
// would write.
package hostile

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// Text names something, and tries to set the window's title, to clear the screen, to write
// in red, to write from right to left, and to do so in one byte and in two.
const Text = "\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\u009b2J\x7f\rtrain"

// marks are what no output may hold.
const marks = "\x1b\x07\u202e\u009b\x7f\r"

// Fill sets every text in what into points to, at any depth, to Text: one element of each
// list and map, and behind each pointer.
func Fill(into any) { fill(reflect.ValueOf(into).Elem(), 0) }

// deepest ends types that hold themselves.
const deepest = 12

func fill(v reflect.Value, depth int) {
	if !v.CanSet() || depth > deepest || v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(Text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // JSON, or bytes
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	}
}

// Harmless fails a test where an output could control a terminal, or does not hold the
// text at all.
func Harmless(t testing.TB, what, output string) {
	t.Helper()
	if strings.ContainsAny(output, marks) || !strings.Contains(output, "train") {
		t.Errorf("%s: %q", what, output)
	}
}
