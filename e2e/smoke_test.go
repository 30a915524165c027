package e2e

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestSmoke(t *testing.T) {
	ctx, c := start(t, cluster.NodeOptions{Topology: topology("dgx-h100"), GPUs: `mode = "slice"
 sharing = "mps"`})
	if _, err := c.RunFile(ctx, "../examples/slice.nomad.hcl"); err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, "slice")
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.Report(ctx, alloc, "serve")
	t.Logf("%+v %v", report, err)
	report, err = c.ExecReport(ctx, alloc, "serve")
	t.Logf("%+v %v", report, err)
}
