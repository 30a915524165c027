// SPDX-License-Identifier: MPL-2.0

package hclform

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Mistake is a value that cannot be used.
type Mistake struct {
	// Key leads to the value, such as "gpu[0].replicas"; empty where the problem says it.
	Key string
	// Problem names the value and the valid values.
	Problem string
}

func (m Mistake) Error() string {
	if m.Key == "" {
		return m.Problem
	}
	return m.Key + ": " + m.Problem
}

// Mistakes are all values of a configuration that cannot be used.
type Mistakes []Mistake

func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, mistake := range m {
		lines[i] = mistake.Error()
	}
	return strings.Join(lines, "\n")
}

// Err is nil where there are none.
func (m Mistakes) Err() error {
	if len(m) == 0 {
		return nil
	}
	return m
}

// Fill enters a tree of values into a pointer to a form. An integer takes a whole number,
// as a number or as its text; one with the tag as:"compute" takes a part of a GPU, 0.5 or
// 500. The error is Mistakes where values cannot be used; the rest is entered nevertheless.
func Fill(tree, into any) error {
	var found Mistakes
	fill(&found, "", tree, reflect.ValueOf(into).Elem(), "")
	return found.Err()
}

func fill(found *Mistakes, key string, value any, form reflect.Value, as string) {
	if value == nil {
		return
	}
	wrong := func(valid string) {
		*found = append(*found, Mistake{key, fmt.Sprintf("%.80q is not valid (%s)", fmt.Sprint(value), valid)})
	}
	switch form.Kind() {
	case reflect.Pointer:
		inside := reflect.New(form.Type().Elem())
		before := len(*found)
		if fill(found, key, value, inside.Elem(), as); len(*found) == before || inside.Elem().Kind() == reflect.Struct {
			form.Set(inside)
		}
	case reflect.Struct:
		tree, ok := value.(map[string]any)
		if !ok {
			wrong("a block")
			return
		}
		fillFields(found, key, tree, form)
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			wrong("a list")
			return
		}
		form.Set(reflect.MakeSlice(form.Type(), len(list), len(list)))
		for i, inside := range list {
			fill(found, fmt.Sprintf("%s[%d]", key, i), inside, form.Index(i), as)
		}
	case reflect.Map:
		tree, ok := value.(map[string]any)
		if !ok {
			wrong("a map")
			return
		}
		form.Set(reflect.MakeMapWithSize(form.Type(), len(tree)))
		for name, inside := range tree {
			element := reflect.New(form.Type().Elem()).Elem()
			fill(found, strings.TrimPrefix(key+"."+name, "."), inside, element, "")
			form.SetMapIndex(reflect.ValueOf(name), element)
		}
	case reflect.Interface:
		form.Set(reflect.ValueOf(value))
	case reflect.String:
		text, ok := value.(string)
		if !ok {
			wrong("a text")
			return
		}
		form.SetString(text)
	case reflect.Bool:
		set, ok := value.(bool)
		if !ok {
			wrong("true, false")
			return
		}
		form.SetBool(set)
	default:
		number, err := numberOf(fmt.Sprint(value), form.CanUint(), as)
		if err != nil {
			*found = append(*found, Mistake{key, err.Error()})
			return
		}
		form.Set(reflect.ValueOf(number).Convert(form.Type()))
	}
}

func fillFields(found *Mistakes, key string, tree map[string]any, form reflect.Value) {
	for i := range form.NumField() {
		field := form.Type().Field(i)
		if field.Anonymous {
			fillFields(found, key, tree, form.Field(i))
			continue
		}
		name := field.Tag.Get("codec")
		if value, written := tree[name]; written {
			fill(found, strings.TrimPrefix(key+"."+name, "."), value, form.Field(i), field.Tag.Get("as"))
		}
	}
}

// numberOf reads a whole number, or a part of a GPU's compute, which 0 leaves open.
func numberOf(text string, positive bool, as string) (int64, error) {
	if as == "compute" && text != "0" {
		milli, err := gpu.ParseMilli(text)
		return int64(milli), err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is not valid (it is too large)", text)
	case err != nil:
		return 0, fmt.Errorf("%q is not valid (a whole number)", text)
	case positive && n < 0:
		return 0, fmt.Errorf("%d is not valid (a whole number from 0)", n)
	}
	return n, nil
}
