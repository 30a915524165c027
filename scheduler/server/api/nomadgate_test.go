package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
)

// TestMaySubmit asks a Nomad that knows the namespace "known" only. As the real
// one, it refuses to plan in another one with a status that says nothing.
func TestMaySubmit(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch namespace := r.URL.Query().Get("namespace"); {
		case r.Header.Get("X-Nomad-Token") == "weak":
			http.Error(w, "Permission denied", http.StatusForbidden)
		case strings.HasSuffix(r.URL.Path, "/plan") && namespace != "known":
			http.Error(w, "nonexistent namespace", http.StatusInternalServerError)
		case strings.HasPrefix(r.URL.Path, "/v1/namespace/") && !strings.HasSuffix(r.URL.Path, "/known") && !strings.HasSuffix(r.URL.Path, "/odd"):
			http.Error(w, "Namespace not found", http.StatusNotFound)
		default:
			w.Write([]byte("{}")) //nolint:errcheck // a test's server
		}
	}))
	defer s.Close()
	gate, err := NewNomadGate(nomad.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		token, namespace string
		want             error
		status           int
	}{
		{"good", "known", nil, 0},
		{"good", "typo", ErrNoNamespace, http.StatusNotFound},
		{"good", "odd", ErrNoAnswer, http.StatusBadGateway},
		{"weak", "typo", ErrDenied, http.StatusForbidden},
	} {
		err := gate.MaySubmit(t.Context(), row.token, row.namespace)
		if !errors.Is(err, row.want) || err != nil && describe(err).status != row.status {
			t.Errorf("%s in %s: %v, want %v", row.token, row.namespace, err, row.want)
		}
	}
}

// Nomad answers the question for the jobs of a namespace that does not exist
// with an empty list.
func TestMayReadNamespace(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jobs := r.URL.Path == "/v1/jobs"
		switch namespace := r.URL.Query().Get("namespace"); {
		case r.Header.Get("X-Nomad-Token") == "weak":
			http.Error(w, "Permission denied", http.StatusForbidden)
		case jobs && namespace == "busy":
			w.Write([]byte(`[{"ID":"a"}]`)) //nolint:errcheck // a test's server
		case jobs:
			w.Write([]byte("[]")) //nolint:errcheck // a test's server
		case strings.HasSuffix(r.URL.Path, "/idle"):
			w.Write([]byte("{}")) //nolint:errcheck // a test's server
		default:
			http.Error(w, "Namespace not found", http.StatusNotFound)
		}
	}))
	defer s.Close()
	gate, err := NewNomadGate(nomad.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		token, namespace string
		want             error
	}{{"good", "busy", nil}, {"good", "idle", nil}, {"good", "typo", ErrNoNamespace}, {"weak", "busy", ErrDenied}} {
		if err := gate.MayReadNamespace(t.Context(), row.token, row.namespace); !errors.Is(err, row.want) {
			t.Errorf("%s in %s: %v, want %v", row.token, row.namespace, err, row.want)
		}
	}
}
