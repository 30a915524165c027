// SPDX-License-Identifier: MPL-2.0

package view

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestRedactHidesNames holds every name of a hidden namespace out of the
// picture, and leaves the original alone.
func TestRedactHidesNames(t *testing.T) {
	c := &Cluster{
		Nodes: []Node{{Name: "n1", GPUs: []GPU{{
			UUID:      "GPU-1",
			Instances: []Instance{{ID: "0", AllocID: "alloc-secret", Task: "task-secret"}, {ID: "1", AllocID: "alloc-open", Task: "train"}},
			Holders: []Holder{
				{AllocID: "alloc-secret", Namespace: "secret", JobID: "job-secret", Group: "group-secret", Task: "task-secret", Queue: "secret", MemoryMiB: 8192},
				{AllocID: "alloc-open", Namespace: "open", JobID: "job-open", Task: "train"},
			},
		}}}},
		Pending:   []Pending{{Namespace: "secret", JobID: "pending-secret"}, {Namespace: "open", JobID: "pending-open"}},
		OnCPU:     []FellBack{{Namespace: "secret", JobID: "fell-secret", Text: "secret"}},
		Decisions: []Decision{{Namespace: "secret", JobID: "decided-secret"}},
		Holds:     []Hold{{Namespace: "secret", Owner: "owner-secret"}},
		Events:    []Event{{Kind: "error", Text: "trouble with secret/job"}, {Namespace: "secret", Text: "event-secret"}, {Kind: "evict", Namespace: "open", JobID: "victim", For: "secret/winner", Text: "for secret/winner"}},
	}
	if got := strings.Join(c.Namespaces(), " "); got != "open secret" {
		t.Errorf("namespaces %q", got)
	}
	text, err := json.Marshal(c.Redact(func(namespace string) bool { return namespace == "open" }))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") {
		t.Errorf("a hidden name is left: %s", text)
	}
	for _, kept := range []string{"job-open", "alloc-open", "pending-open", "evict of open/victim", `"memory_mib":8192`} {
		if !strings.Contains(string(text), kept) {
			t.Errorf("%s is missing: %s", kept, text)
		}
	}
	if c.Nodes[0].GPUs[0].Holders[0].JobID != "job-secret" || c.Nodes[0].GPUs[0].Instances[0].AllocID != "alloc-secret" {
		t.Error("the original was changed")
	}
}

// What is kept free is kept free for everybody: whoever may not see for whom sees that.
func TestRedactKeepsWhatIsReserved(t *testing.T) {
	c := &Cluster{Holds: []Hold{{ID: "r-secret", Namespace: "secret", Queue: "secret", Owner: "secret", NodeName: "n1", GPUs: []string{"GPU-1"}, ClaimedBy: "secret/job"}}}
	got := c.Redact(func(string) bool { return false }).Holds
	if len(got) != 1 || got[0].NodeName != "n1" || len(got[0].GPUs) != 1 || got[0].ClaimedBy == "" {
		t.Errorf("got %+v", got)
	}
	if text, err := json.Marshal(got); err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestEveryPartNamesItsNamespaces: a namespace that is named in one place alone is
// asked about, and hidden there.
func TestEveryPartNamesItsNamespaces(t *testing.T) {
	held := func(namespaces ...string) Node {
		var g GPU
		for _, name := range namespaces {
			g.Holders = append(g.Holders, Holder{Namespace: name, JobID: "job-of-" + name})
		}
		return Node{GPUs: []GPU{g}}
	}
	for part, c := range map[string]*Cluster{
		"first holder":      {Nodes: []Node{held("here", "other")}},
		"second holder":     {Nodes: []Node{held("other", "here")}},
		"first node":        {Nodes: []Node{held("here"), held("other")}},
		"second node":       {Nodes: []Node{held("other"), held("here")}},
		"second GPU":        {Nodes: []Node{{GPUs: append(held("other").GPUs, held("here").GPUs...)}}},
		"first that waits":  {Pending: []Pending{{Namespace: "here", JobID: "job-of-here"}, {Namespace: "other", JobID: "job-of-other"}}},
		"second that waits": {Pending: []Pending{{Namespace: "other", JobID: "job-of-other"}, {Namespace: "here", JobID: "job-of-here"}}},
		"first decision":    {Decisions: []Decision{{Namespace: "here", JobID: "job-of-here"}, {Namespace: "other", JobID: "job-of-other"}}},
		"second decision":   {Decisions: []Decision{{Namespace: "other", JobID: "job-of-other"}, {Namespace: "here", JobID: "job-of-here"}}},
		"first hold":        {Holds: []Hold{{Namespace: "here", Owner: "job-of-here"}, {Namespace: "other", Owner: "job-of-other"}}},
		"second hold":       {Holds: []Hold{{Namespace: "other", Owner: "job-of-other"}, {Namespace: "here", Owner: "job-of-here"}}},
		"first event":       {Events: []Event{{Namespace: "here", JobID: "job-of-here"}, {Namespace: "other", JobID: "job-of-other"}}},
		"for whom":          {Events: []Event{{Namespace: "here", JobID: "job-of-here", For: "other/job-of-other", Text: "for job-of-other"}}, Decisions: []Decision{{Namespace: "here"}}},
		"second event":      {Events: []Event{{}, {Namespace: "other", JobID: "job-of-other"}, {Namespace: "here", JobID: "job-of-here"}}},
	} {
		if got := strings.Join(c.Namespaces(), " "); got != "here other" {
			t.Errorf("%s: asked about %q, want both", part, got)
		}
		for _, visible := range []string{"here", "other"} {
			text, err := json.Marshal(c.Redact(func(namespace string) bool { return namespace == visible }))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"here", "other"} {
				if shown := strings.Contains(string(text), "job-of-"+name); shown != (name == visible) && (shown || part != "for whom") {
					t.Errorf("%s: a reader of %q sees the job of %q: %v", part, visible, name, shown)
				}
			}
		}
	}
}

func TestReady(t *testing.T) {
	for want, nodes := range map[bool][]Node{
		true:  {{Status: "ready", Eligible: true}},
		false: {{Status: "down", Eligible: true}, {Status: "ready"}, {Status: "ready", Eligible: true, Draining: true}, {Status: "down", Eligible: true, Draining: true}},
	} {
		for _, n := range nodes {
			if n.Ready() != want {
				t.Errorf("%+v: ready %v, want %v", n, !want, want)
			}
		}
	}
	if g := (GPU{}); !g.Idle() {
		t.Error("a free GPU is not idle")
	}
	if g := (GPU{Holders: []Holder{{}}}); g.Idle() {
		t.Error("a GPU that a task holds is idle")
	}
}

// An event that was for no other job is told as it is to whoever may see its own.
func TestEventsOfOneJobAreTold(t *testing.T) {
	c := &Cluster{Events: []Event{
		{Kind: "release", Namespace: "lab", JobID: "job", Text: "it need not wait"},
		{Kind: "evict", Namespace: "lab", JobID: "job", For: "secret/other", Text: "it must leave for secret/other"},
		{Kind: "evict", Namespace: "lab", JobID: "job", For: "lab/mine", Text: "it must leave for lab/mine"},
		{Kind: "evict", Namespace: "secret", JobID: "other", Text: "it must leave"},
		{Kind: "start", Text: "the service started"},
	}}
	got := c.Redact(func(namespace string) bool { return namespace == "lab" }).Events
	if len(got) != 3 || got[0] != c.Events[0] || got[2] != c.Events[2] || got[1].For != Hidden || strings.Contains(got[1].Text, "secret") {
		t.Errorf("told is %+v", got)
	}
}
