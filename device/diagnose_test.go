// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/testport"
)

// diagnose writes a configuration into a file and checks the node with it.
func (r *rig) diagnose(config string) *doctor.Report {
	r.t.Helper()
	path := filepath.Join(r.dir, "config.hcl")
	must(r.t, os.WriteFile(path, []byte(config), 0o600))
	report := &doctor.Report{}
	inventory.Diagnose(r.t.Context(), path, report)
	return report
}

// findings looks for text in what a check found, which is a line each: status,
// detail, action.
func findings(t *testing.T, report *doctor.Report, check string, want ...string) {
	t.Helper()
	var b strings.Builder
	for _, f := range report.Findings {
		if f.Check == check {
			fmt.Fprintf(&b, "%s: %s -> %s\n", f.Status, f.Detail, f.Action)
		}
	}
	for _, text := range want {
		if !strings.Contains(b.String(), text) {
			t.Errorf("%s: %q has no %q", check, b.String(), text)
		}
	}
}

func TestDiagnoseOfARunningPlugin(t *testing.T) {
	const topology, config = "../e2e/topology/dgx-h100.hcl", "mode = \"slice\"\nslice_memory = \"8GiB\"\nmetrics { address = \"127.0.0.1:0\" }"
	r := newRig(t)
	r.start(topology, config)
	groups := r.until("all is healthy", allHealthy)
	address := r.service.metricsAddress
	now := strings.Replace(r.config(topology, config), "127.0.0.1:0", address, 1)
	report := r.diagnose(now)
	if report.Worst() != doctor.OK {
		t.Errorf("a healthy machine: %v", report.Findings)
	}
	for _, check := range []string{"configuration", "driver", "plugin", "GPU 0", "GPU 7", "MPS", "metrics"} {
		findings(t, report, check, "ok: ")
	}

	uuid := uuidOf(t, groups, "slice/H100/1")
	r.listen(uuid)
	r.happen(uuid, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 48); c.RecoveryAction = 1 })
	must(t, registry.OpenCordons(r.dir+"/data").Add(uuidOf(t, groups, "slice/H100/2"), "a fan is loud"))
	r.until("its slices are unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 0 })
	report = r.diagnose(now)
	findings(t, report, "GPU 1", "failed: ", "nvidia-smi --gpu-reset")
	findings(t, report, "GPU 2", "warning: ", "a fan is loud")
	findings(t, report, "GPU 3", "ok: ")
}

func TestDiagnoseOfWhatIsWrong(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := testport.Reserve(t)
	r := newRig(t)
	simulated := func(topology, config string) string { return r.config("../e2e/topology/"+topology, config) }
	for name, tc := range map[string]struct{ config, check, want string }{
		"mistake":           {`mode = "sliced"`, "configuration", `failed: read configuration`},
		"disabled":          {`enabled = false`, "configuration", "warning: the plugin is disabled"},
		"no driver":         {`vendors = ["nvidia"]` + "\nlibrary_path = [\"/nowhere\"]", "driver", "failed: "},
		"a rule for none":   {simulated("t4.hcl", "gpu {\n model = \"H100\"\n mode = \"whole\"\n}"), "configuration", "warning: gpu[0] selects no GPU"},
		"no plugin":         {simulated("t4.hcl", ""), "plugin", "warning: no plugin has run here"},
		"no control":        {strings.Replace(simulated("t4.hcl", `mode = "slice"`), "control = \"", "control = \"/nowhere", 1), "MPS", "failed: slices need NVIDIA's control program"},
		"an old branch":     {simulated("dgx-v100.hcl", `mode = "slice"`), "MPS", "failed: branch 470"},
		"another's metrics": {simulated("t4.hcl", metricsAt(other.Listener.Addr().String())), "metrics", "failed: another program listens"},
		"no metrics":        {simulated("t4.hcl", metricsAt(gone)), "metrics", "warning: nothing listens"},
	} {
		t.Run(name, func(t *testing.T) {
			report := r.diagnose(tc.config)
			findings(t, report, tc.check, tc.want)
			for _, f := range report.Findings {
				if f.Status != doctor.OK && f.Action == "" {
					t.Errorf("nothing is said of what to do: %v", f)
				}
			}
		})
	}
}

func metricsAt(address string) string { return fmt.Sprintf("metrics { address = %q }", address) }
