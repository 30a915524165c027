// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// object is a JSON object in its own order, with the bytes of every value as
// they came. Nomad reads field names without regard to case, and takes the last
// of two; so an object in which a field is given twice has no certain meaning
// and is not read.
type object struct {
	members []member
	// exact is set where names are data, as in a task's config: "A" and "a"
	// are two there.
	exact bool
}

type member struct {
	name  string
	value json.RawMessage
}

// parseObject splits an object into its members. null is an empty object.
func parseObject(raw []byte) (object, error) { return object{}.parse(raw) }

// parseMap splits an object whose names are data: only equal names are one.
func parseMap(raw []byte) (object, error) { return object{exact: true}.parse(raw) }

// parse looks at each byte once, where encoding/json's decoder does three times: a job is
// split five objects deep.
func (o object) parse(raw []byte) (object, error) {
	if isNull(raw) {
		return o, nil
	}
	dec := newDecoder(raw)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return o, fmt.Errorf("read JSON: an object is expected")
	}
	seen := map[string]bool{}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return o, fmt.Errorf("read JSON: %w", err)
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return o, fmt.Errorf("read JSON field %q: %w", name, err)
		}
		key := o.key(name)
		if seen[key] {
			return o, fmt.Errorf("JSON field %q is given twice", name)
		}
		seen[key] = true
		o.members = append(o.members, member{name, json.RawMessage(value.Clone())})
	}
	return o, nil
}

// parseArray splits an array into its elements. null is an empty array.
func parseArray(raw []byte) ([]json.RawMessage, error) {
	if isNull(raw) {
		return nil, nil
	}
	dec := newDecoder(raw)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '[' {
		return nil, fmt.Errorf("read JSON: a list is expected")
	}
	var elements []json.RawMessage
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("read JSON: %w", err)
		}
		elements = append(elements, json.RawMessage(value.Clone()))
	}
	return elements, nil
}

// newDecoder reads JSON as Nomad's decoder does: strings that are not UTF-8 are text.
func newDecoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func isNull(raw []byte) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// key is equal for names that mean the same field.
func (o object) key(name string) string {
	if o.exact {
		return name
	}
	return strings.Map(func(r rune) rune { // to the smallest of its letter cases
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}

// find returns a field's place, -1 when it is not there.
func (o object) find(name string) int {
	return slices.IndexFunc(o.members, func(m member) bool {
		return m.name == name || !o.exact && strings.EqualFold(m.name, name)
	})
}

// get returns a field's value, nil when it is not there.
func (o object) get(name string) json.RawMessage {
	if i := o.find(name); i >= 0 {
		return o.members[i].value
	}
	return nil
}

// set replaces a field's value in its place, or appends the field.
func (o *object) set(name string, value json.RawMessage) {
	if i := o.find(name); i >= 0 {
		o.members[i].value = value
		return
	}
	o.members = append(o.members, member{name, value})
}

// remove takes a field out.
func (o *object) remove(name string) {
	if i := o.find(name); i >= 0 {
		o.members = slices.Delete(o.members, i, i+1)
	}
}

// decode reads a field into v, which keeps its value when the field is missing
// or null.
func (o object) decode(name string, v any) error {
	raw := o.get(name)
	if isNull(raw) {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// raw writes the object.
func (o object) raw() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(m.name))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// rawArray writes an array.
func rawArray(elements []json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e)
	}
	b.WriteByte(']')
	return b.Bytes()
}

// encode writes a value of plain data without HTML escapes.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // plain data always encodes
		return json.RawMessage("null")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// without returns an array's elements that are not to be dropped.
func without(raw json.RawMessage, drop func(json.RawMessage) bool) ([]json.RawMessage, error) {
	list, err := parseArray(raw)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, drop), nil
}

func (o object) clone() object {
	o.members = slices.Clone(o.members)
	return o
}
