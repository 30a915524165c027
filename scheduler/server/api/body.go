package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// maxBody bounds a body; the largest that makes sense is a few hundred bytes.
const maxBody = 64 << 10

// bodyTimeout is how long a body may take to come.
const bodyTimeout = 15 * time.Second

// read decodes a request's body into a struct. Unknown fields are errors that
// name the valid ones. Only JSON is taken: a page of another site can send
// other types without asking the browser first.
func read(r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, "content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return problemf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return problemf(http.StatusBadRequest, "read body: %v", err)
	}
	return decode(text, into)
}

// decode is read's pure part.
func decode(text []byte, into any) error {
	fields := fieldsOf(into)
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return problemf(http.StatusBadRequest, "the body is not a JSON object with some of the fields %s", strings.Join(fields, ", "))
	}
	for name := range members {
		if !contains(fields, name) {
			return problemf(http.StatusBadRequest, "unknown field %q; valid are %s", name, strings.Join(fields, ", "))
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
