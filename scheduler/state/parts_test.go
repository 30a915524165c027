// SPDX-License-Identifier: MPL-2.0

package state

import (
	"reflect"
	"slices"
	"testing"
)

// A part knows the parts above it in [Reader], and never a Reader: so it can be read without
// those below it.
func TestPartsKnowOnlyPartsAboveThem(t *testing.T) {
	bare := func(f reflect.Type) reflect.Type {
		if f.Kind() == reflect.Pointer {
			return f.Elem()
		}
		return f
	}
	var parts []reflect.Type
	reader := reflect.TypeFor[Reader]()
	for i := range reader.NumField() {
		if f := reader.Field(i); f.Anonymous {
			parts = append(parts, bare(f.Type))
		}
	}
	whole := []reflect.Type{reader, reflect.TypeFor[Tx](), reflect.TypeFor[State]()}
	for at, part := range parts {
		if part.Kind() != reflect.Struct {
			continue
		}
		for i := range part.NumField() {
			f := bare(part.Field(i).Type)
			if slices.Contains(whole, f) {
				t.Errorf("%s knows %s: it is a part of that", part.Name(), f.Name())
			}
			if below := slices.Index(parts, f); below >= at {
				t.Errorf("%s knows %s, which stands below it", part.Name(), f.Name())
			}
		}
	}
}

// Whatever a part knows is the one that the Reader has, and it knows all of it from the start.
func TestPartsAreOnesOfTheReader(t *testing.T) {
	r := reflect.ValueOf(emptyReader())
	has := map[reflect.Type]reflect.Value{}
	for i := range r.NumField() {
		if r.Type().Field(i).Anonymous {
			has[r.Field(i).Type()] = r.Field(i)
		}
	}
	for _, part := range has {
		if part.Kind() != reflect.Pointer {
			continue
		}
		for i := range part.Elem().NumField() {
			field, name := part.Elem().Field(i), part.Type().String()+"."+part.Elem().Type().Field(i).Name
			known, isPart := has[field.Type()]
			if isPart && field.Pointer() != known.Pointer() {
				t.Errorf("%s is not the Reader's", name)
			}
			if field.Kind() == reflect.Map && field.IsNil() && !slices.Contains(untilSet, name) {
				t.Errorf("%s cannot be written to", name)
			}
		}
	}
}

// untilSet are the maps that are nil until they are replaced as a whole.
var untilSet = []string{"*state.checkpoints.at", "*state.starts.groups", "*state.starts.fits", "*state.starts.lacks"}
