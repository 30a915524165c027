// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
)

// diagnose runs the doctor on a machine, as an operator does.
func diagnose(t *testing.T, ctx context.Context, n *cluster.Node) doctor.Report {
	t.Helper()
	// An exit code of 1 says that something failed, which the report says better.
	out, err := n.Command(ctx, nil, "env", "NOMAD_ADDR="+n.URL, filepath.Join(root, "bin", "nomad-gpu-doctor"), "check", "-json", "-config", filepath.Join(n.Dir("."), "agent.hcl"))
	var report doctor.Report
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		t.Fatal(jsonErr, err, string(out))
	}
	if (err != nil) != (report.Worst() == doctor.Failed) {
		t.Errorf("the worst is %s, and the exit code %v", report.Worst(), err)
	}
	return report
}

// status is that of a check; failures are all that failed.
func status(report doctor.Report, check string) (status doctor.Status, failures []doctor.Finding) {
	for _, f := range report.Findings {
		if f.Check == check {
			status = f.Status
		}
		if f.Status == doctor.Failed {
			failures = append(failures, f)
		}
	}
	return status, failures
}

// The doctor finds nothing that fails on a machine that is well, and what was broken on
// one that is not; a bundle of it can be packed.
func TestDoctor(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: "mode = \"slice\"\nslice_memory = \"8GiB\""})
	n := c.Nodes[0]
	report := diagnose(t, ctx, n)
	for _, check := range []string{"kernel", "nomad-device-gpu", "nomad-driver-containerd", "driver", "GPU 0", "GPU 1", "MPS", "containerd", "agent", "node", "driver containerd", "nvidia/slice/H100/0"} {
		if got, failures := status(report, check); got != doctor.OK || len(failures) > 0 {
			t.Errorf("%s is %q on a machine that is well, and these failed: %v", check, got, failures)
		}
	}
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out, err := n.Command(ctx, nil, "env", "NOMAD_ADDR="+n.URL, filepath.Join(root, "bin", "nomad-gpu-doctor"), "bundle", "-config", filepath.Join(n.Dir("."), "agent.hcl"), "-out", bundle)
	if err != nil {
		t.Fatal(err, string(out))
	}
	t.Logf("%s", out)
	if info, err := os.Stat(bundle); err != nil || info.Size() == 0 {
		t.Errorf("the bundle: %v, %v", info, err)
	}

	states, err := os.ReadDir(n.Path("/run/nomad-gpu/gpus"))
	if err != nil {
		t.Fatal(err)
	}
	first := states[0].Name()
	uuid := first[:len(first)-len(".json")]
	if err := sim.Update(n.SimDir(), uuid, func(c *sim.Condition) { c.RecoveryAction = 1 }); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitNode(ctx, func(node *api.Node) bool { return !cluster.AllHealthy(node) }); err != nil {
		t.Fatal(err)
	}
	if err := n.KillContainerd(); err != nil {
		t.Fatal(err)
	}
	report = diagnose(t, ctx, n)
	broken := 0
	for _, gpu := range []string{"GPU 0", "GPU 1"} {
		if got, _ := status(report, gpu); got == doctor.Failed {
			broken++
		}
	}
	if broken != 1 {
		t.Errorf("one GPU is broken, and the doctor finds %d: %v", broken, report.Findings)
	}
	if got, _ := status(report, "containerd"); got != doctor.Failed {
		t.Errorf("containerd was killed, and the doctor says %s", got)
	}
}
