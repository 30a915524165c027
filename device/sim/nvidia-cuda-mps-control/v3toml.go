// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// table is a table of TOML: values are strings, integers, booleans, tables and lists of
// tables, which is all that NVIDIA's configuration has.
type table map[string]any

// parseTOML reads the part of TOML that NVIDIA's page of the configuration file uses.
func parseTOML(text string) (table, error) {
	root := table{}
	at := root
	for n, line := range strings.Split(text, "\n") {
		fail := func(err error) error { return fmt.Errorf("line %d: %w", n+1, err) }
		line = strings.TrimSpace(line)
		var err error
		switch name, list := strings.CutPrefix(line, "[["); {
		case line == "" || line[0] == '#':
		case list:
			at, err = root.enter(strings.TrimSuffix(name, "]]"), true)
		case line[0] == '[':
			at, err = root.enter(strings.TrimSuffix(line[1:], "]"), false)
		default:
			err = at.set(line)
		}
		if err != nil {
			return nil, fail(err)
		}
	}
	return root, nil
}

// enter returns the table of a dotted name, which is made where it is not there; a list
// gets another one.
func (t table) enter(name string, list bool) (table, error) {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		last := i == len(parts)-1
		switch have := t[part].(type) {
		case nil:
			next := table{}
			t[part] = any(next)
			if last && list {
				t[part] = []table{next}
			}
			t = next
		case table:
			if last && list {
				return nil, fmt.Errorf("%s is a table", name)
			}
			t = have
		case []table:
			if last && list {
				have = append(have, table{})
				t[part] = have
			}
			t = have[len(have)-1]
		default:
			return nil, fmt.Errorf("%s is not a table", part)
		}
	}
	return t, nil
}

func (t table) set(line string) error {
	key, value, found := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if !found || key == "" {
		return fmt.Errorf("%q is neither a table nor a value", line)
	}
	if _, twice := t[key]; twice {
		return fmt.Errorf("%s is there twice", key)
	}
	if text, err := strconv.Unquote(value); err == nil && value[0] == '"' {
		t[key] = text
	} else if number, err := strconv.Atoi(value); err == nil {
		t[key] = number
	} else if value == "true" || value == "false" {
		t[key] = value == "true"
	} else {
		return fmt.Errorf("%s: %q is not a value", key, value)
	}
	return nil
}

// only refuses keys that a release does not know: "Any other key is a configuration error".
func (t table) only(where string, keys ...string) error {
	for key := range t {
		if !slices.Contains(keys, key) {
			return fmt.Errorf("%s: unknown key %q", where, key)
		}
	}
	return nil
}

// field reads a value of one type; the zero value is one that is not there.
func field[T any](t table, where, key string) (value T, err error) {
	if v, found := t[key]; found {
		var ok bool
		if value, ok = v.(T); !ok {
			return value, fmt.Errorf("%s.%s: %v is of another type", where, key, v)
		}
	}
	return value, nil
}
