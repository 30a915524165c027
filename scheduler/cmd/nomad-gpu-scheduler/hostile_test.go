package main

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Authors name jobs, groups and tasks as they like: an operator's terminal shows the names,
// and does not obey them.
func TestNamesDoNotSteerTheTerminal(t *testing.T) {
	const name = "\x1b]0;owned\x07\x1b[2Jtrain"
	var b strings.Builder
	d := view.Decision{Namespace: "default", JobID: name, Group: name, Queue: name, Policy: name, Ask: name}
	d.Summary, d.Reasons = "for "+name, []view.Reason{{Nodes: 1, Why: name}}
	d.Choices = []view.Choice{{NodeName: name, Groups: []string{name}}}
	s := story{JobID: name, Namespace: "default", Decisions: []view.Decision{d}, Pending: []view.Pending{{JobID: name, Group: "other", Ask: name, Reason: name, Note: name}},
		Events: []view.Event{{JobID: name, For: name, Text: name}}}
	report := ledger.Report{By: ledger.ByJob, Currency: name, Rows: []ledger.Row{{Job: name, Group: name, Task: name}}}
	report.Total.Cost = 1
	for _, err := range []error{
		s.print(&b), printReport(&b, &report),
		printAdvice(&b, &rest.Advices{Advice: []ledger.Advice{{Namespace: "default", Job: name, Group: name, Task: name, Text: name}}}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if text := b.String(); strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "train") < 12 {
		t.Errorf("%q", text)
	}
}
