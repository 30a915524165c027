// SPDX-License-Identifier: MPL-2.0

package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nomad "github.com/hashicorp/nomad/api"
)

// TestMaySubmit asks a Nomad that knows the namespace "known" only. As the real
// one, it refuses to plan in another one with a status that says nothing.
func TestMaySubmit(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch namespace := r.URL.Query().Get("namespace"); {
		case r.Header.Get("X-Nomad-Token") == "weak", r.Header.Get("X-Nomad-Token") == "registers" && strings.HasSuffix(r.URL.Path, "/plan"):
			http.Error(w, "Permission denied", http.StatusForbidden)
		case r.URL.Path == "/v1/jobs":
			http.Error(w, "Enforcing job modify index 18446744073709551615: job does not exist", http.StatusInternalServerError)
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
		{"weak", "known", ErrDenied, http.StatusForbidden},
		{"registers", "known", nil, 0},
	} {
		err := gate.MaySubmit(t.Context(), row.token, row.namespace)
		if !errors.Is(err, row.want) || err != nil && describe(err).status != row.status {
			t.Errorf("%s in %s: %v, want %v", row.token, row.namespace, err, row.want)
		}
	}
}

// TestSilenceIsNoDenial: where Nomad does not say whether a token may register, that is not
// remembered as a no.
func TestSilenceIsNoDenial(t *testing.T) {
	for status, text := range map[int]string{http.StatusTooManyRequests: "", http.StatusInternalServerError: "No cluster leader", 0: "the connection ends"} {
		var answers atomic.Bool
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/plan"):
				http.Error(w, "Permission denied", http.StatusForbidden)
			case r.URL.Path != "/v1/jobs":
				w.Write([]byte("{}")) //nolint:errcheck // a test's server
			case answers.Load():
				http.Error(w, "Enforcing job modify index 18446744073709551615: job does not exist", http.StatusInternalServerError)
			case status == 0:
				panic(http.ErrAbortHandler)
			default:
				http.Error(w, text, status)
			}
		}))
		defer s.Close()
		gate, err := NewNomadGate(nomad.Config{Address: s.URL, HttpClient: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if err := gate.MaySubmit(t.Context(), "registers", "known"); !errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrDenied) {
			t.Errorf("%d %s: %v, want %v", status, text, err, ErrNoAnswer)
		}
		answers.Store(true)
		if err := gate.MaySubmit(t.Context(), "registers", "known"); err != nil {
			t.Errorf("%d %s, then an answer: %v", status, text, err)
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

// What Nomad cannot be asked about is denied, and nothing of it is kept.
func TestTheGateBoundsWhatItIsAsked(t *testing.T) {
	gate, err := NewNomadGate(nomad.Config{Address: "http://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", maxNamespace+1)
	for name, ask := range map[string]func() error{
		"a line break":        func() error { return gate.MaySubmit(t.Context(), "a\nb", "default") },
		"a delete character":  func() error { return gate.MayRead(t.Context(), "a\x7f") },
		"a long token":        func() error { return gate.MayRead(t.Context(), strings.Repeat("a", maxToken+1)) },
		"a long namespace":    func() error { return gate.MaySubmit(t.Context(), "", long) },
		"all namespaces":      func() error { return gate.MaySubmit(t.Context(), "", "*") },
		"jobs of all":         func() error { return gate.MayReadNamespace(t.Context(), "", "*") },
		"jobs of a long name": func() error { return gate.MayReadNamespace(t.Context(), "", long) },
	} {
		if err := ask(); !errors.Is(err, ErrDenied) || len(gate.known) != 0 {
			t.Errorf("%s: %v, %d kept", name, err, len(gate.known))
		}
	}
}

// Where the gate remembers as much as it may, it forgets first what it believes no more.
func TestTheGateForgetsTheOldestFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	gate := &NomadGate{now: func() time.Time { return now }, known: map[gateKey]gateAnswer{}}
	add := func(from, to int) {
		for i := from; i < to; i++ {
			gate.remember(gateKey{namespace: strconv.Itoa(i)}, gateAnswer{until: now.Add(gateMemory)})
		}
	}
	add(0, gateSize-1)
	now = now.Add(gateMemory)
	add(gateSize-1, gateSize+1)
	if len(gate.known) != 2 {
		t.Errorf("%d are kept, want the 2 that are believed", len(gate.known))
	}
	add(0, gateSize-1)
	if len(gate.known) != 1 {
		t.Errorf("%d are kept, want 1: all others were believed still", len(gate.known))
	}
}

// asked is a Nomad that remembers what it was asked, and answers as the test says.
type asked struct {
	status   atomic.Int32
	requests chan *http.Request
}

func (n *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.requests <- r
	w.WriteHeader(int(n.status.Load()))
	w.Write([]byte(`[{"ID":"one"}]`)) //nolint:errcheck // a test's server
}

// newAsked is a gate before such a Nomad, with a clock that stands still.
func newAsked(t *testing.T) (n *asked, gate *NomadGate, now *time.Time) {
	t.Helper()
	n, now = &asked{requests: make(chan *http.Request, 100)}, new(time.Unix(1000, 0))
	n.status.Store(http.StatusOK)
	s := httptest.NewServer(n)
	t.Cleanup(s.Close)
	gate, err := NewNomadGate(nomad.Config{Address: s.URL, HttpClient: s.Client(), SecretID: "the service's own"})
	if err != nil {
		t.Fatal(err)
	}
	gate.now = func() time.Time { return *now }
	return n, gate, now
}

// Nomad is asked as the caller, and for as little as tells: never as the service, whose token
// may do more.
func TestTheGateAsksAsTheCaller(t *testing.T) {
	n, gate, _ := newAsked(t)
	for _, token := range []string{"", "ada"} {
		if err := gate.MayRead(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if err := gate.MayReadNamespace(t.Context(), token, "research"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct{ path, namespace string }{{"/v1/nodes", ""}, {"/v1/jobs", "research"}} {
			r := <-n.requests
			query := r.URL.Query()
			if r.URL.Path != want.path || query.Get("namespace") != want.namespace || query.Get("per_page") != "1" || !query.Has("stale") || r.Header.Get("X-Nomad-Token") != token {
				t.Errorf("as %q it asks %s with %v", token, r.URL, r.Header)
			}
		}
	}
}

// An answer is believed for as long as the gate says, for one token, one question and one
// namespace; where Nomad gave none, it is asked again.
func TestTheGateRemembersAnswers(t *testing.T) {
	for name, row := range map[string]struct {
		status     int
		want       error
		remembered bool
	}{
		"a yes":         {http.StatusOK, nil, true},
		"a no":          {http.StatusForbidden, ErrDenied, true},
		"a bad token":   {http.StatusUnauthorized, ErrDenied, true},
		"an odd answer": {http.StatusTeapot, ErrNoAnswer, false},
	} {
		n, gate, now := newAsked(t)
		n.status.Store(int32(row.status))
		began := *now
		questions := 0
		ask := func(after time.Duration, token, namespace string, want bool) {
			t.Helper()
			*now = began.Add(after)
			if err := gate.MayReadNamespace(t.Context(), token, namespace); !errors.Is(err, row.want) || row.want == nil && err != nil {
				t.Errorf("%s: %v, want %v", name, err, row.want)
			} else if row.want == ErrDenied && !strings.Contains(err.Error(), `"`+namespace+`"`) {
				t.Errorf("%s: %v does not say in which namespace", name, err)
			}
			if want {
				questions++
			}
			if len(n.requests) != questions {
				t.Errorf("%s: after %s %q was asked %d times about %q, want %d", name, after, token, len(n.requests), namespace, questions)
			}
		}
		ask(0, "ada", "research", true)
		ask(gateMemory-1, "ada", "research", !row.remembered)
		ask(gateMemory-1, "eve", "research", true)
		ask(gateMemory-1, "ada", "serving", true)
		ask(gateMemory, "ada", "research", true)
		if err := gate.MayRead(t.Context(), "ada"); !errors.Is(err, row.want) || len(n.requests) != questions+1 {
			t.Errorf("%s: another question: %v, asked %d times", name, err, len(n.requests))
		} else if row.want == ErrDenied && strings.Contains(err.Error(), "namespace") {
			t.Errorf("%s: %v names a namespace", name, err)
		}
	}
}

// A Nomad that does not answer holds no caller up for longer than the gate's bound, and is no
// yes.
func TestTheGateWaitsForNomadOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, err := NewNomadGate(nomad.Config{Address: "http://nomad", HttpClient: &http.Client{Transport: silent{}}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := gate.MayRead(t.Context(), "ada"); !errors.Is(err, ErrNoAnswer) || time.Since(began) != gateTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// silent is the way to a server that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// The longest token and namespace that Nomad could know are asked about.
func TestTheGateAsksUpToItsBounds(t *testing.T) {
	n, gate, _ := newAsked(t)
	if err := gate.MayReadNamespace(t.Context(), strings.Repeat("a", maxToken), strings.Repeat("b", maxNamespace)); err != nil || len(n.requests) != 1 {
		t.Errorf("%v, asked %d times", err, len(n.requests))
	}
	for name, token := range map[string]string{"a blank": "a b", "a letter above ASCII": "ä"} {
		if !askable(token, "") {
			t.Errorf("%s is taken for a control character", name)
		}
	}
	for _, token := range []string{"a\tb", "a\x1fb", "\x7f"} {
		if askable(token, "") {
			t.Errorf("%q is asked about", token)
		}
	}
}
