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
