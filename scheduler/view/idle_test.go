// SPDX-License-Identifier: MPL-2.0

package view_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// idleCluster has two idle tasks beside others: one of slices, one with a seat of four.
func idleCluster() *view.Cluster {
	c := viewtest.Small()
	shared := &c.Nodes[1].GPUs[len(c.Nodes[1].GPUs)-1]
	shared.Holders[0].Use = &view.Use{UnusedSince: c.At.Add(-2 * time.Hour), MemoryMiB: view.Unmeasured}
	return c
}

func TestIdleReport(t *testing.T) {
	c := idleCluster()
	r := c.IdleReport(0)
	if len(r.Idle) != 1 || r.Idle[0].JobID != "notebook-3" || r.Idle[0].Action != "evict" || r.Milli != 200 || r.MemoryMiB != 8192 || r.Unmeasured != 5 {
		t.Errorf("by the rules of queues: %+v", r)
	}
	r = c.IdleReport(30 * time.Minute)
	if len(r.Idle) != 2 || r.Idle[0].JobID != "lab" || r.Idle[0].Milli != 250 || r.Idle[0].MemoryMiB != 15360/4 || r.Idle[0].Action != "" {
		t.Errorf("for half an hour, the longest first: %+v", r)
	}
	if r = c.IdleReport(3 * time.Hour); len(r.Idle) != 0 || r.Idle == nil {
		t.Errorf("for three hours: %+v", r)
	}
}

// Who may not see a namespace sees that something is idle there, and no name.
func TestTheIdleReportNamesNobodyWhoIsHidden(t *testing.T) {
	r := idleCluster().Redact(func(namespace string) bool { return namespace != "research" }).IdleReport(0)
	want := view.Idle{
		NodeName: "gpu-node-1", UUID: "GPU-a0000000-0000", Device: "nvidia/slice/A100/0", Namespace: view.Hidden, JobID: view.Hidden, Priority: 20,
		Since: viewtest.Now.Add(-50 * time.Minute), UsedMemoryMiB: 1900, Instances: 8, Milli: 200, MemoryMiB: 8192, Action: "evict",
	}
	if len(r.Idle) != 1 || r.Idle[0] != want {
		t.Errorf("got %+v\nwant %+v", r.Idle, want)
	}
}

// What has not been used for just as long is listed; of equals in time the node and then the
// alloc decide, whatever order they come in; and what is not shared frees what it holds.
func TestTheIdleReportIsInOrder(t *testing.T) {
	holder := func(alloc string, idle time.Duration) view.Holder {
		return view.Holder{AllocID: alloc, Instances: 2, GuaranteeMilli: 300, MemoryMiB: 2048, Use: &view.Use{UnusedSince: viewtest.Now.Add(-idle)}}
	}
	c := &view.Cluster{At: viewtest.Now, Nodes: []view.Node{
		{Name: "b", GPUs: []view.GPU{{Mode: "slice", Holders: []view.Holder{holder("2", time.Hour), holder("1", time.Hour), holder("3", time.Hour-1)}}}},
		{Name: "a", GPUs: []view.GPU{
			{Mode: "shared", MemoryMiB: 16384, Instances: make([]view.Instance, 8), Holders: []view.Holder{holder("9", time.Hour)}},
			{Mode: "shared", MemoryMiB: 16384, Holders: []view.Holder{holder("8", 2*time.Hour)}},
		}},
	}}
	r := c.IdleReport(time.Hour)
	got := ""
	for _, one := range r.Idle {
		got += one.NodeName + one.AllocID + " "
	}
	if got != "a8 a9 b1 b2 " {
		t.Errorf("listed are %s", got)
	}
	if nine := r.Idle[1]; nine.Milli != 250 || nine.MemoryMiB != 4096 || r.Milli != 250+3*300 || r.MemoryMiB != 4096+3*2048 {
		t.Errorf("freed would be %+v", r)
	}
}
