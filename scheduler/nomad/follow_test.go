// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// A stream that only sends heartbeats is well, however long it does; one that says nothing
// is silent after a while.
func TestAHeartbeatIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &inMemory{answer: func(r *http.Request) (int, any) {
			reader, writer := line(r)
			go func() {
				for range 10 {
					time.Sleep(30 * time.Second)
					if _, err := io.WriteString(writer, "{}\n"); err != nil {
						t.Error(err)
					}
				}
			}()
			return http.StatusOK, reader
		}}
		s, err := NewClient(m.client(t)).subscribe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 10 {
			if _, more := <-s.next(); !more {
				t.Fatalf("it ended after %s: %v", time.Since(begun), s.err)
			}
		}
		if _, more := <-s.next(); more || !errors.Is(s.err, errSilent) || time.Since(begun) != 300*time.Second+silence {
			t.Errorf("it ended after %s: %v", time.Since(begun), s.err)
		}
	})
}

// An event that the lists know already changes nothing; one that cannot be read is an
// error, so that everything is read again.
func TestEventsOfTheStream(t *testing.T) {
	at := listed{nodes: 10, jobs: 20, allocs: 30, evals: 40}
	for name, c := range map[string]struct {
		e       event
		changes int
		fails   bool
	}{
		"as old as the list":     {e: event{Topic: "Node", Index: 10, Key: "n", Payload: json.RawMessage(`{"Node":{"ID":"n","ModifyIndex":10}}`)}},
		"newer than the list":    {e: event{Topic: "Node", Index: 11, Key: "n", Payload: json.RawMessage(`{"Node":{"ID":"n","ModifyIndex":11}}`)}, changes: 1},
		"of another list":        {e: event{Topic: "Job", Index: 11, Key: "j", Payload: json.RawMessage(`{"Job":{"ID":"j","Namespace":"default","JobModifyIndex":11}}`)}},
		"a job":                  {e: event{Topic: "Job", Index: 21, Key: "j", Namespace: "default", Payload: json.RawMessage(`{"Job":{"ID":"j","Namespace":"default","JobModifyIndex":21}}`)}, changes: 1},
		"nothing that is known":  {e: event{Topic: "Service", Index: 50, Payload: json.RawMessage(`{"Service":{}}`)}},
		"what cannot be read":    {e: event{Topic: "Node", Index: 50, Payload: json.RawMessage(`{"Node":7}`)}, fails: true},
		"a node that is unknown": {e: event{Topic: "Node", Type: "NodeDeregistration", Index: 50, Key: "n", Payload: json.RawMessage(`{}`)}},
	} {
		m := NewMirror(Hardware{})
		m.at = at
		changes, err := m.event(c.e)
		if (err != nil) != c.fails || len(changes) != c.changes {
			t.Errorf("%s: %d changes, %v; want %d", name, len(changes), err, c.changes)
		}
	}
}

// What lies below a prefix is listed with its index, and nothing else.
func TestStoreLists(t *testing.T) {
	fails := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		if r.URL.Query().Get("prefix") != "nomad-gpu/decisions/" || r.URL.Query().Get("namespace") != "ops" {
			t.Errorf("asked %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode([]api.VariableMetadata{{Path: "nomad-gpu/decisions/a", ModifyIndex: 3}, {Path: "nomad-gpu/decisionsx", ModifyIndex: 4}, {Path: "nomad-gpu/decisions/b", ModifyIndex: 5}})
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(client, "ops")
	got, err := store.List(t.Context(), "nomad-gpu/decisions/")
	if want := map[string]uint64{"nomad-gpu/decisions/a": 3, "nomad-gpu/decisions/b": 5}; err != nil || !maps.Equal(got, want) {
		t.Errorf("listed %v, %v", got, err)
	}
	fails = true
	if _, err := store.List(t.Context(), "nomad-gpu/decisions/"); err == nil {
		t.Error("a list that fails is an empty one")
	}
}

// A part of a GPU that is given out as it is has the name of its group as its profile, where
// it says none of its own; a GPU has none.
func TestProfilesOfParts(t *testing.T) {
	own := "2g.20gb"
	for name, c := range map[string]struct {
		deviceType, group string
		attributes        map[string]*api.Attribute
		want              string
	}{
		"a MIG instance":           {deviceType: "mig", group: "1g.10gb", want: "1g.10gb"},
		"that says what it is":     {deviceType: "mig", group: "1g.10gb", attributes: map[string]*api.Attribute{"profile": {StringVal: &own}}, want: own},
		"a GPU":                    {deviceType: "gpu", group: "H100/0"},
		"slices of a GPU":          {deviceType: "slice", group: "T4/0"},
		"a GPU that says what not": {deviceType: "gpu", group: "H100/0", attributes: map[string]*api.Attribute{"profile": {StringVal: &own}}, want: own},
	} {
		n := NewNode(&api.Node{ID: "n", NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{{
			Vendor: "nvidia", Type: c.deviceType, Name: c.group, Attributes: c.attributes, Instances: []*api.NodeDevice{{ID: "GPU-1", Healthy: true}},
		}}}}, Hardware{})
		if got := n.View.GPUs[0].Profile; got != c.want {
			t.Errorf("%s: profile %q, want %q", name, got, c.want)
		}
	}
}
