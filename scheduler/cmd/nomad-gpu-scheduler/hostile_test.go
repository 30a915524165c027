// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal/hostile"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// filled answers every path with what an author of jobs would plant wherever there is a
// text.
func filled(t *testing.T) http.Handler {
	answers := map[string]any{
		clusterPath: &view.Cluster{}, eventsPath: &rest.JobEvents{}, idlePath: &view.IdleReport{}, ledgerPath: &ledger.Report{}, ledgerPath + "/advice": &rest.Advices{},
		"/v1/jobs": &registerAnswer{}, "/v1/jobs/parse": &struct{ ID, Namespace string }{}, "/v1/nodes": &[]api.NodeListStub{},
		"/v1/job/" + hostile.Text + "/plan": &planAnswer{},
	}
	for _, answer := range answers {
		hostile.Fill(answer)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("format") == "csv" {
			_, _ = w.Write([]byte("job,gpu_hours\n\"" + hostile.Text + "\",1\n"))
			return
		}
		answer := answers[r.URL.Path]
		if answer == nil {
			t.Errorf("no answer to %s", r.URL.Path)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})
}

// Authors name jobs, groups and tasks as they like: an operator's terminal shows the names,
// and does not obey them, whatever the command, and neither what it was refused with.
func TestNamesDoNotSteerTheTerminal(t *testing.T) {
	job := filepath.Join(t.TempDir(), "job.nomad")
	if err := os.WriteFile(job, []byte("job {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(filled(t))
	defer service.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "job "+hostile.Text+" is refused", http.StatusUnprocessableEntity)
	}))
	defer refusing.Close()
	for _, line := range [][]string{
		{"status"}, {"status", "-job", hostile.Text, "-namespace", hostile.Text}, {"explain", "-namespace", hostile.Text, hostile.Text}, {"idle"}, {"report"}, {"report", "-csv"}, {"report", "-advice"},
		{"plan", job}, {"run", job}, {"export", "-out", t.TempDir()},
	} {
		name := strings.Join(line, " ")
		if line[0] != "export" {
			code, stdout, stderr := run(append(line, "-address", service.URL)...)
			if code != exitOK {
				t.Errorf("%q: exit %d, %s", name, code, stderr)
			}
			hostile.Harmless(t, name, stdout)
			if !strings.Contains(name, "-csv") {
				_, stdout, _ = run(append(line, "-json", "-address", service.URL)...)
				hostile.Harmless(t, name+" -json", stdout)
			}
		}
		code, _, stderr := run(append(line, "-address", refusing.URL)...)
		if code != exitError {
			t.Errorf("%q: exit %d when refused", name, code)
		}
		hostile.Harmless(t, name+" when refused", stderr)
	}
}
