// SPDX-License-Identifier: MPL-2.0

package agentconfig

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/base"

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

// Decode reads a configuration, as Nomad hands it to a plugin, into a pointer to its Go
// form. A schema has its numbers as text, so that they are read here: an integer field
// takes a whole number, and one with the tag as:"compute" a part of a GPU, 0.5 or 500. The
// error holds Mistakes where values cannot be used; the rest is read nevertheless.
func Decode(packed []byte, into any) error {
	var tree any
	if err := base.MsgPackDecode(packed, &tree); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	var found Mistakes
	fit(&found, "", tree, reflect.TypeOf(into).Elem(), "")
	var numbers []byte
	err := base.MsgPackEncode(&numbers, tree)
	if err == nil {
		err = base.MsgPackDecode(numbers, into)
	}
	if err != nil {
		return errors.Join(found.err(), fmt.Errorf("decode: %w", err))
	}
	return found.err()
}

func (m Mistakes) err() error {
	if len(m) == 0 {
		return nil
	}
	return m
}

// fit returns what stands in the place of a value whose Go form is known: numbers for
// the text of numbers, and nil for a mistake.
func fit(found *Mistakes, key string, value any, form reflect.Type, as string) any {
	for form.Kind() == reflect.Pointer {
		form = form.Elem()
	}
	switch form.Kind() {
	case reflect.Struct:
		if tree, ok := value.(map[string]any); ok {
			fitFields(found, key, tree, form)
		}
	case reflect.Slice:
		list, ok := value.([]any)
		for i := range list {
			list[i] = fit(found, fmt.Sprintf("%s[%d]", key, i), list[i], form.Elem(), as)
		}
		if ok {
			return list
		}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		if value == nil {
			return nil
		}
		text := fmt.Sprint(value)
		number, err := numberOf(text, form.Kind() == reflect.Uint64, as)
		if err != nil {
			*found = append(*found, Mistake{key, err.Error()})
			return nil
		}
		return number
	}
	return value
}

func fitFields(found *Mistakes, key string, tree map[string]any, form reflect.Type) {
	for i := range form.NumField() {
		field := form.Field(i)
		if field.Anonymous {
			fitFields(found, key, tree, field.Type)
			continue
		}
		name := field.Tag.Get("codec")
		value, written := tree[name]
		if !written {
			continue
		}
		at := name
		if key != "" {
			at = key + "." + name
		}
		tree[name] = fit(found, at, value, field.Type, field.Tag.Get("as"))
	}
}

// numberOf reads a whole number, or a part of a GPU's compute, which 0 leaves open.
func numberOf(text string, positive bool, as string) (any, error) {
	if as == "compute" && text != "0" {
		return computeOf(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return nil, fmt.Errorf("%s is not valid (it is too large)", text)
	case err != nil:
		return nil, fmt.Errorf("%q is not valid (a whole number)", text)
	case positive && n < 0:
		return nil, fmt.Errorf("%d is not valid (a whole number from 0)", n)
	}
	return n, nil
}

func computeOf(text string) (any, error) {
	milli, err := gpu.ParseMilli(text)
	if err != nil {
		return nil, err
	}
	return milli, nil
}
