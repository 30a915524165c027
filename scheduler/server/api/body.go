// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
)

// maxBody bounds a body; the largest that makes sense is a few hundred bytes.
const maxBody = 64 << 10

// read decodes a request's body into a struct. Unknown fields are errors that
// name the valid ones. Only JSON is taken: a page of another site can send
// other types without asking the browser first.
func read(r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, "content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	text, err := readText(r)
	if err != nil {
		return err
	}
	return decode(text, into)
}

// readText reads a request's body within the bound.
func readText(r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, problemf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return nil, problemf(http.StatusBadRequest, "read body: %v", err)
	}
	return text, nil
}

// decode is read's pure part.
func decode(text []byte, into any) error {
	fields := fieldsOf(into)
	names, ok := members(text)
	if !ok {
		return problemf(http.StatusBadRequest, "the body is not a JSON object with some of the fields %s", strings.Join(fields, ", "))
	}
	for i, name := range names {
		if !contains(fields, name) {
			return problemf(http.StatusBadRequest, "unknown field %q; valid are %s", name, strings.Join(fields, ", "))
		}
		if contains(names[:i], name) {
			return problemf(http.StatusBadRequest, "field %q is there twice", name)
		}
	}
	err := json.Unmarshal(text, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return problemf(http.StatusBadRequest, "field %q is a JSON %s; write %s", wrong.Field, wrong.Value, kindText(wrong.Type))
	}
	if err != nil {
		return problemf(http.StatusBadRequest, "decode body: %v", err)
	}
	return nil
}

// members are the names in a JSON object, in order; false if it is none.
func members(text []byte) (names []string, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') || !json.Valid(text) {
		return nil, false
	}
	for dec.More() {
		name, _ := dec.Token() // a string, since the text is valid
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		names = append(names, fmt.Sprint(name))
	}
	return names, true
}

// fieldsOf are the JSON names of a struct's fields.
func fieldsOf(into any) []string {
	kind := reflect.TypeOf(into).Elem()
	var names []string
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func kindText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	}
	return fmt.Sprintf("a %s", t.Kind())
}

func contains(list []string, one string) bool {
	for _, s := range list {
		if s == one {
			return true
		}
	}
	return false
}
