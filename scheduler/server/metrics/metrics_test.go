// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// scrape asks for all details.
func scrape(t *testing.T, c *view.Cluster, own prometheus.Gatherer) string {
	t.Helper()
	return scrapeOf(t, c, own, Path+"?detail=nodes&detail=devices&detail=tasks")
}

func scrapeOf(t testing.TB, c *view.Cluster, own prometheus.Gatherer, path string) string {
	t.Helper()
	mux := http.NewServeMux()
	Register(mux.Handle, shown{c}, own, func() time.Time { return viewtest.Now })
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
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

// TestAScrapeDoesNotGrowWithTheCluster: it has sums, and says of no node, device or task anything by itself.
func TestAScrapeDoesNotGrowWithTheCluster(t *testing.T) {
	small, large := scrapeOf(t, viewtest.Large(10), nil, Path), scrapeOf(t, viewtest.Large(1000), nil, Path)
	if lines := strings.Count(small, "\n"); lines != strings.Count(large, "\n") || len(large) > 20_000 {
		t.Errorf("%d lines of 10 nodes, %d lines and %d bytes of 1,000", lines, strings.Count(large, "\n"), len(large))
	}
	for _, m := range all {
		if m.detail != "" && strings.Contains(large, m.name+"{") {
			t.Errorf("%s is told without being asked for", m.name)
		}
	}
	golden.Compare(t, "sums.prom", scrapeOf(t, viewtest.Small(), nil, Path))
}

func BenchmarkScrape(b *testing.B) {
	c := viewtest.Large(1000)
	for name, path := range map[string]string{"sums": Path, "details": Path + "?detail=nodes&detail=devices&detail=tasks"} {
		b.Run(name, func(b *testing.B) {
			size := 0
			for b.Loop() {
				size = len(scrapeOf(b, c, nil, path))
			}
			b.ReportMetric(float64(size)/1024, "KiB")
		})
	}
}

// TestADetailThatIsNone is refused, with those that there are.
func TestADetailThatIsNone(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux.Handle, shown{viewtest.Small()}, nil, time.Now)
	for _, query := range []string{"detail=all", "detail=", "details=tasks"} {
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, httptest.NewRequest("GET", Path+"?"+query, nil)); !strings.Contains(w.Body.String(), "is not valid (detail is nodes, devices or tasks") {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
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

// TestDocumented holds the documentation to the code.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if !strings.Contains(string(text), "| `"+m.name+"` | "+m.help) && (m.detail == "" || !strings.Contains(string(text), "`"+m.name+"`")) {
			t.Errorf("docs/monitoring.md has no row | `%s` | %s …", m.name, m.help)
		}
	}
}

// A node with an open reservation is not empty: an autoscaler would take it from whoever holds it.
func TestAReservedNodeIsNotIdle(t *testing.T) {
	node := func(id string) view.Node {
		return view.Node{ID: id, Name: id, Status: "ready", Eligible: true, GPUs: []view.GPU{{UUID: "GPU-" + id, Type: "T4", Healthy: true, Instances: []view.Instance{{ID: id, Healthy: true}}}}}
	}
	c := &view.Cluster{Nodes: []view.Node{node("a"), node("b"), node("c")}, Holds: []view.Hold{{NodeID: "a"}, {NodeID: "b", ClaimedBy: "default/x"}}}
	if got := scrapeOf(t, c, nil, Path); !strings.Contains(got, "\nnomad_gpu_nodes_idle 2\n") {
		t.Errorf("of three empty nodes, one of them reserved, so many are idle:\n%s", got)
	}
}
