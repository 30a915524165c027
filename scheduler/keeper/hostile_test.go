// SPDX-License-Identifier: MPL-2.0

package keeper

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// Names are authors', and as long as they like: the ledger keeps what was held all the
// same, in little room, and knows two jobs apart whose names differ at their end.
func TestLongNamesHideNothing(t *testing.T) {
	w := newWorld(t)
	w.boot()
	long := strings.Repeat("x", 2<<20)
	for n, end := range []string{"a", "b"} {
		a := &nomad.Alloc{ID: "alloc-" + end, Namespace: "default", Job: long + end, Group: long, NodeID: "id-a", NodeName: "a", Status: "running", Created: w.now,
			Devices: []nomad.TaskDevices{{Task: long, Group: "nvidia/slice/T4/0", IDs: []string{servicetest.Instance("a", 0, n)}}}}
		w.allocs[a.ID] = a
		w.tell(nomad.Change{Alloc: a})
	}
	w.pass(time.Minute)
	w.boot() // reads what was written
	held, _, err := w.store.Recall(t.Context())
	if err != nil || len(held) != 2 {
		t.Fatalf("%d records, %v", len(held), err)
	}
	for _, r := range held {
		for _, name := range []string{r.Task, r.Job, r.Group} {
			if len(name) > 256 || !strings.HasPrefix(name, "xxx") {
				t.Errorf("a name has %d bytes: %.20q", len(name), name)
			}
		}
	}
	if held[0].Job == held[1].Job {
		t.Error("two jobs are one")
	}
}

func TestNamesAreText(t *testing.T) {
	for text, want := range map[string]string{"train": "train", "a\x00b": "a\uFFFDb", "a\xffb": "a\uFFFDb", strings.Repeat("é", 128): strings.Repeat("é", 128)} {
		if got := ledger.Name(text); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
}
