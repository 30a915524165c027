// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = program.Run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "Usage: nomad-gpu-scheduler"},
		{[]string{"-help"}, exitOK, "Commands:"},
		{[]string{"nonsense"}, exitUsage, `unknown command "nonsense"`},
		{[]string{"version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"-version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"validate"}, exitUsage, "For more: nomad-gpu-scheduler validate -help"},
		{[]string{"status", "-address", "gpu.example:4656"}, exitError, `the address "gpu.example:4656" is not a URL; write one such as "http://127.0.0.1:4656"`},
		{[]string{"status", "-address", "unix://run/gpu.sock"}, exitError, `or "unix:///run/gpu.sock"`},
		{[]string{"status", "-address", "unix:///no-such-folder/gpu.sock"}, exitError, "dial unix /no-such-folder/gpu.sock"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

func TestAWrongOptionIsNotHiddenByHelp(t *testing.T) {
	for _, c := range commands {
		code, stdout, stderr := run(c.Name, "-nonsense")
		if want := "flag provided but not defined: -nonsense\nFor more: nomad-gpu-scheduler " + c.Name + " -help\n"; code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q, %q", c.Name, code, stdout, stderr)
		}
	}
}

// What a replica tells of its own decisions is documented, with every outcome.
func TestTheMetricOfDecisionsIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	m, registry := newMetered(nil)
	held := newTallies()
	held.add(&ledger.Hold{Queue: "q", Milli: 500}, time.Second)
	registry.MustRegister(append(held.all(), lostSpans(trace.Off()))...)
	for want, decisions := range map[string][]admit.Decision{
		view.Placed: {{Outcome: view.Placed}}, view.Registered: {{Outcome: view.Registered}, {Outcome: view.Placed}},
		view.Waits: {{Outcome: view.Placed}, {Outcome: view.Waits}}, view.Held: {{Outcome: view.Waits}, {Outcome: view.Held}},
	} {
		if got := outcome(decisions, nil); got != want {
			t.Errorf("%+v is %q, want %q", decisions, got, want)
		}
		m.seconds.WithLabelValues(want).Observe(1)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "nomad_gpu_") && !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/monitoring.md does not name %s", name)
		}
	}
	if outcomes := "placed, registered, waits, held, refused or failed"; !strings.Contains(string(text), outcomes) {
		t.Errorf("docs/monitoring.md does not list the outcomes: %s", outcomes)
	}
}

// Refusals are counted by reason, and what the service does by itself by what it is; both
// exist before the first.
func TestRecordsAreCounted(t *testing.T) {
	m, registry := newMetered(nil)
	for _, r := range []server.Record{
		{Action: "register", Outcome: "refused", Status: 422}, {Action: "reserve", Outcome: "refused", Status: 422}, {Action: "register", Outcome: "refused", Status: 418},
		{Action: "register", Outcome: "rejected", Status: 500}, {Action: "register", Outcome: "placed", Status: 200},
		{Action: "evict", Outcome: "done"}, {Action: "evict", Outcome: "dry_run"}, {Action: "evict", Outcome: "done"},
	} {
		m.count(r)
	}
	got := map[string]float64{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			name := f.GetName()
			for _, label := range one.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = one.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"nomad_gpu_refusals_total impossible": 2, "nomad_gpu_refusals_total other": 1, "nomad_gpu_refusals_total nomad": 1, "nomad_gpu_refusals_total quota": 0,
		"nomad_gpu_actions_total evict done": 2, "nomad_gpu_actions_total evict dry_run": 1, "nomad_gpu_actions_total reclaim done": 0,
	} {
		if value, known := got[name]; !known || value != want {
			t.Errorf("%s is %g, %v; want %g", name, value, known, want)
		}
	}
}
