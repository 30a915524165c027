// SPDX-License-Identifier: MPL-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

// TestOwnToken has the service's own token renewed in place, and never lent to
// a caller.
func TestOwnToken(t *testing.T) {
	var seen []string
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("X-Nomad-Token"))
		_, _ = w.Write([]byte("[]")) // a client that is gone is seen by the test
	}))
	defer nomad.Close()
	c := config.Default()
	c.Nomad.Address, c.Nomad.TokenFile = nomad.URL, filepath.Join(t.TempDir(), "token")
	if _, err := newUpstream(c); err == nil || !strings.Contains(err.Error(), c.Nomad.TokenFile) {
		t.Errorf("without its token file: %v", err)
	}
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(c.Nomad.TokenFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(c.Nomad.TokenFile, at, at); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	write("first\n", now)
	up, err := newUpstream(c)
	if err != nil {
		t.Fatal(err)
	}
	own, err := up.client()
	if err != nil {
		t.Fatal(err)
	}
	list := func() {
		t.Helper()
		if _, _, err := own.Nodes().List(nil); err != nil {
			t.Fatal(err)
		}
	}
	list()
	write("second", now.Add(time.Second))
	list()
	write("", now.Add(2*time.Second)) // is being written
	list()
	gate, err := rest.NewNomadGate(up.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "caller's"} {
		if err := gate.MayRead(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := strings.Join(seen, ","), "first,second,second,,caller's"; got != want {
		t.Errorf("Nomad saw the tokens %q, want %q", got, want)
	}
}

func TestWhatNomadIsNotReachedWith(t *testing.T) {
	for _, row := range []struct{ address, variable, says string }{
		{"nomad.example:4646", "", "is not a URL"},
		{"https://nomad.example:4646", "NOMAD_SKIP_VERIFY", "NOMAD_CACERT"},
		{"https://nomad.example:4646", "NOMAD_CAPATH", "NOMAD_CACERT"},
	} {
		t.Run(row.address+row.variable, func(t *testing.T) {
			if row.variable != "" {
				t.Setenv(row.variable, "true")
			}
			c := config.Default()
			c.Nomad.Address = row.address
			if _, err := newUpstream(c); err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%v, want %q", err, row.says)
			}
		})
	}
}
