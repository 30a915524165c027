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

// TestDocumented holds the documentation to the code.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if !strings.Contains(string(text), "| `"+m.name+"` | "+m.help) {
			t.Errorf("docs/monitoring.md has no row | `%s` | %s …", m.name, m.help)
		}
	}
}
