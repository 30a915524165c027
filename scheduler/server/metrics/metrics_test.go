package metrics

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// shown is a guard that lets everybody see one picture.
type shown struct{ c *view.Cluster }

func (s shown) Guarded(serve func(http.ResponseWriter, *http.Request, *view.Cluster) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := serve(w, r, s.c); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

func scrape(t *testing.T, c *view.Cluster, own prometheus.Gatherer) string {
	t.Helper()
	mux := http.NewServeMux()
	Register(mux.Handle, shown{c}, own, func() time.Time { return viewtest.Now })
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", Path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestScrape(t *testing.T) {
	got := scrape(t, viewtest.Small(), nil)
	golden.Compare(t, "small.prom", got)
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestHiddenTasksAddUp: several hidden holders of a GPU have the same labels.
func TestHiddenTasksAddUp(t *testing.T) {
	c := viewtest.Small().Redact(func(string) bool { return false })
	text := scrape(t, c, nil)
	if want := `nomad_gpu_task_memory_bytes{alloc="",group="",job="(hidden)",namespace="(hidden)",node="gpu-node-1",task="",uuid="GPU-a0000000-0000"} 3.0064771072e+10`; !strings.Contains(text, want) {
		t.Errorf("no line %s in\n%s", want, text)
	}
	if strings.Contains(text, "notebook") {
		t.Error("a hidden name is told")
	}
}

func TestOwnMetricsAreAdded(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector())
	if text := scrape(t, viewtest.Small(), own); !strings.Contains(text, "go_goroutines") || !strings.Contains(text, "nomad_gpu_device_info") {
		t.Error("a scrape has not both kinds of metrics")
	}
}

// TestDocumented holds the documentation and the alert rules to the code.
func TestDocumented(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	text, err := os.ReadFile(filepath.Join(docs, "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range all {
		known[m.name] = true
		if !strings.Contains(string(text), "| `"+m.name+"` | "+m.help) {
			t.Errorf("docs/monitoring.md has no row | `%s` | %s …", m.name, m.help)
		}
	}
	rules, err := os.ReadFile(filepath.Join(docs, "alerts", "nomad-gpu.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := os.ReadFile(filepath.Join(docs, "..", "device", "metrics.go")) // what nodes send
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`nomad_gpu_[a-z_]+`).FindAllString(string(rules), -1) {
		if !known[name] && !strings.Contains(string(nodes), `"`+name+`"`) {
			t.Errorf("an alert rule uses %s, which nobody sends", name)
		}
	}
	// All replicas tell the same: what is asked of each fires once for each.
	asked := regexp.MustCompile(`(\S*) ?\((nomad_gpu_[a-z_]+(?: - nomad_gpu_[a-z_]+)?)|nomad_gpu_[a-z_]+`)
	for _, m := range asked.FindAllStringSubmatch(string(rules), -1) {
		name, _, _ := strings.Cut(cmp.Or(m[2], m[0]), " ")
		if known[name] && !slices.Contains([]string{"(instance)", "(queue)", "max", "sum", "absent"}, strings.Trim(m[1], "'")) {
			t.Errorf("an alert rule asks each replica for %s; take the worst of them: max without (instance) (…)", name)
		}
	}
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1)
	for _, a := range alerts {
		if !strings.Contains(string(text), "`"+a[1]+"`") {
			t.Errorf("docs/monitoring.md does not say what to do about %s", a[1])
		}
	}
	if blocks := strings.Split(string(rules), "- alert:")[1:]; len(blocks) != len(alerts) || len(alerts) == 0 {
		t.Errorf("%d alerts, %d blocks", len(alerts), len(blocks))
	} else {
		for i, block := range blocks {
			for _, key := range []string{"expr:", "for:", "severity:", "summary:", "description:"} {
				if !strings.Contains(block, key) {
					t.Errorf("alert %s has no %s", alerts[i][1], key)
				}
			}
		}
	}
}
