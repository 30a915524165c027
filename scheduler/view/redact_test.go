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
