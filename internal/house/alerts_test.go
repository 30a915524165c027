// SPDX-License-Identifier: MPL-2.0

package house

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// senders are the sources that name what is sent to Prometheus, by the part that sends
// it.
var senders = map[string][]sender{
	"nodes": {{"device/telemetry/*.go", "", regexp.MustCompile(`"((?:nomad_gpu|DCGM_FI)_[A-Za-z0-9_]+)"`)}},
	"service": {
		{"scheduler/server/metrics/names.go", "nomad_gpu_", regexp.MustCompile(`(?:define\(|detail\([a-zA-Z]+, )"([a-z_]+)"`)},
		{"scheduler/cmd/nomad-gpu-scheduler/*.go", "", regexp.MustCompile(`Name: +"(nomad_gpu_[a-z_]+)"`)},
	},
}

// sender is a part of the sources, and how a metric's name is written there.
type sender struct {
	files, prefix string
	name          *regexp.Regexp
}

// sent are the metrics of one part.
func sent(t *testing.T, part string) []string {
	t.Helper()
	var names []string
	for _, from := range senders[part] {
		files, err := filepath.Glob(filepath.Join(root, from.files))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range from.name.FindAllStringSubmatch(string(text), -1) {
				names = append(names, from.prefix+m[1])
			}
		}
	}
	if len(names) < 5 {
		t.Fatalf("%s sends only %v", part, names)
	}
	return names
}

var asked = regexp.MustCompile(`\b(?:nomad_gpu|DCGM_FI)_[A-Za-z0-9_]+\b`)

// Rules and dashboards of nodes ask for what nodes send, and those of the service for
// what it sends: an operator may have one without the other.
func TestQueriesNameMetricsThatAreSent(t *testing.T) {
	for part := range senders {
		known := sent(t, part)
		for _, file := range []string{"docs/alerts/" + part + ".rules.yml", "docs/grafana/" + part + ".json"} {
			names := asked.FindAllString(documents.Read(t, root, file), -1)
			if len(names) == 0 {
				t.Errorf("%s asks for nothing", file)
			}
			for _, name := range names {
				if !slices.Contains(known, name) && !slices.Contains(known, strings.TrimSuffix(name, "_bucket")) {
					t.Errorf("%s asks for %s, which no program sends", file, name)
				}
			}
		}
	}
}

// All replicas of the service tell the same: an alert that asked each would fire once
// for each.
func TestAlertsFireOnceForAllReplicas(t *testing.T) {
	query := regexp.MustCompile(`(\S*) ?\((nomad_gpu_[a-z_]+)|nomad_gpu_[a-z_]+`)
	for _, line := range strings.Split(documents.Read(t, root, "docs/alerts/service.rules.yml"), "\n") {
		_, expr, found := strings.Cut(line, "expr: ")
		if !found {
			continue
		}
		before := ""
		for _, m := range query.FindAllStringSubmatch(expr, -1) {
			within := before == "(instance)" && m[2] == "" // nomad_gpu_a - nomad_gpu_b
			if before = strings.Trim(m[1], "'"); !within && !slices.Contains([]string{"(instance)", "(queue)", "max", "sum", "absent"}, before) {
				t.Errorf("%s asks each replica for %s; take the worst of them: max without (instance) (…)", expr, m[0])
			}
		}
	}
}

// Every alert has a page of what to do, and every page an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	const guide = "docs/guides/runbooks.md"
	heading := regexp.MustCompile(`(?m)^### (\w+)$`)
	var written []string
	for _, m := range heading.FindAllStringSubmatch(documents.Read(t, root, guide), -1) {
		written = append(written, m[1])
	}
	var alerts []string
	for part := range senders {
		for _, block := range strings.Split(documents.Read(t, root, "docs/alerts/"+part+".rules.yml"), "- alert: ")[1:] {
			name, _, _ := strings.Cut(block, "\n")
			alerts = append(alerts, name)
			for _, key := range []string{"expr:", "for:", "severity:", "summary:", "description:", "/" + guide + "#" + strings.ToLower(name) + "'"} {
				if !strings.Contains(block, key) {
					t.Errorf("alert %s has no %s", name, key)
				}
			}
			if !strings.Contains(documents.Read(t, root, "docs/monitoring.md"), "[`"+name+"`](guides/runbooks.md#"+strings.ToLower(name)+")") {
				t.Errorf("docs/monitoring.md does not list %s", name)
			}
		}
	}
	slices.Sort(alerts)
	slices.Sort(written)
	if !slices.Equal(alerts, written) {
		t.Errorf("there are alerts %v, and runbooks for %v", alerts, written)
	}
	fires := documents.Read(t, root, "internal/house/testdata/alerts.yml")
	for _, name := range alerts {
		if !strings.Contains(fires, `alertname="`+name+`"`) {
			t.Errorf("no test lets %s fire", name)
		}
	}
}

// promtool is Prometheus's own tool; without it the test is skipped.
func promtool(t *testing.T) string {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		promtool, err = filepath.Abs(filepath.Join(root, "bin/e2e/prometheus/usr/bin/promtool"))
		if _, absent := os.Stat(promtool); err != nil || absent != nil {
			t.Skip("promtool is neither on PATH nor in bin/e2e (e2e/prepare tests unpacks Debian's)")
		}
	}
	return promtool
}

// Prometheus's own tool reads the rules, and tries when each fires.
func TestAlertsFire(t *testing.T) {
	promtool := promtool(t)
	for _, arguments := range [][]string{{"check", "rules", "../../../docs/alerts/nodes.rules.yml", "../../../docs/alerts/service.rules.yml"}, {"test", "rules", "alerts.yml"}} {
		command := exec.Command(promtool, arguments...)
		command.Dir = "testdata"
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// Dashboards are read by Grafana as they are.
func TestDashboardsAreDashboards(t *testing.T) {
	seen := map[string]bool{}
	for part := range senders {
		var dashboard struct {
			UID    string
			Panels []struct {
				ID      int
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal([]byte(documents.Read(t, root, "docs/grafana/"+part+".json")), &dashboard); err != nil {
			t.Fatal(err)
		}
		if dashboard.UID == "" || seen[dashboard.UID] || len(dashboard.Panels) == 0 {
			t.Errorf("%s: uid %q, %d panels", part, dashboard.UID, len(dashboard.Panels))
		}
		seen[dashboard.UID] = true
		for n, panel := range dashboard.Panels {
			if panel.ID != n+1 || panel.Title == "" || len(panel.Targets) == 0 || panel.Targets[0].Expr == "" {
				t.Errorf("%s: panel %d is %+v", part, n+1, panel)
			}
		}
	}
}
