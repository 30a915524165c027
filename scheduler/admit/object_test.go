// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// FuzzObject splits objects and lists as encoding/json does, which Nomad uses: a job could
// hide a field from the service that only one of the two sees. Both refuse the same, but for
// a field that is given twice.
func FuzzObject(f *testing.F) {
	for _, text := range []string{
		`{}`, ` {"a" : 1 , "b":[ {"c":"d"}, null ]} `, `{"a":1}x`, `{"a":1,}`, `{"a"}`, `{"a":}`, `{,}`, `{"a":1 "b":2}`, `{"a":01}`, `{a:1}`, `[]`, `"a"`, `1`, `nul`,
		`{"Tasks":1,"tasks":2}`, `{"a":1,"a":2}`, `{"a":"\ud800"}`, `{"\ud800":1,"\udc00\u0041":2}`, "{\"\xff\":\"\xfe\"}", `{"\u0061\/\n":1e400}`, "{\"a\x00\":1}", "{\"a\":\"\t\"}",
		`[1, "a", {"b":[]}]`, `[1,]`, `[`, `[1 2]`, "\ufeff{}", `{"K":1}`, `{"ſ":1}`, `null`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var first json.RawMessage
		object := json.NewDecoder(bytes.NewReader(raw)).Decode(&first) == nil && bytes.HasPrefix(first, []byte("{"))
		if _, err := readEnvelope(raw); object == errors.Is(err, ErrNoJob) {
			t.Errorf("%q begins with an object: %t to encoding/json, and %v", raw, object, err)
		}
		if json.Valid(raw) {
			sameObject(t, raw)
			sameArray(t, raw)
		}
	})
}

func sameObject(t *testing.T, raw []byte) {
	t.Helper()
	var want map[string]json.RawMessage
	wrong := json.Unmarshal(raw, &want)
	got, err := parseMap(raw)
	if err != nil && strings.Contains(err.Error(), "is given twice") {
		return
	}
	if (err == nil) != (wrong == nil) || len(got.members) != len(want) {
		t.Fatalf("%q is %d fields (%v), and %d to encoding/json (%v)", raw, len(got.members), err, len(want), wrong)
	}
	for _, m := range got.members {
		if value, found := want[m.name]; !found || !bytes.Equal(value, m.value) {
			t.Errorf("%q has %q: %q, and %q to encoding/json", raw, m.name, m.value, value)
		}
	}
}

func sameArray(t *testing.T, raw []byte) {
	t.Helper()
	var want []json.RawMessage
	wrong := json.Unmarshal(raw, &want)
	got, err := parseArray(raw)
	if (err == nil) != (wrong == nil) || len(got) != len(want) {
		t.Fatalf("%q is %d elements (%v), and %d to encoding/json (%v)", raw, len(got), err, len(want), wrong)
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("%q has %q, and %q to encoding/json", raw, got[i], want[i])
		}
	}
}
