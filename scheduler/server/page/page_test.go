// SPDX-License-Identifier: MPL-2.0

package page

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// closed lets no one see the picture. The files need it not.
type closed struct{}

func (closed) Guarded(func(http.ResponseWriter, *http.Request, *view.Cluster) error) http.Handler {
	return http.NotFoundHandler()
}

func TestFilesAreGuarded(t *testing.T) {
	mux := http.NewServeMux()
	if err := Register(mux.Handle, closed{}, time.Now); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, kind := range map[string]string{"/gpu/": "text/html", "/gpu/page.css": "text/css", "/gpu/page.js": "text/javascript", "/gpu/ledger.js": "text/javascript", "/gpu/past.js": "text/javascript", "/gpu/elements.js": "text/javascript", "/gpu/icon.svg": "image/svg+xml"} {
		response, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close() //nolint:errcheck // only read
		if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), kind) {
			t.Errorf("%s: %d %s", path, response.StatusCode, response.Header.Get("Content-Type"))
		}
		if response.Header.Get("Content-Security-Policy") != policy || response.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has not the headers that guard it: %v", path, response.Header)
		}
	}
	for _, name := range []string{"index.html", "page.js", "ledger.js", "past.js", "elements.js", "page.css"} {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, never := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://", "style=\"", "<script>"} {
			if strings.Contains(string(text), never) {
				t.Errorf("%s has %q in it", name, never)
			}
		}
	}
}

// open lets everyone see one picture.
type open struct{ *view.Cluster }

func (o open) Guarded(serve func(http.ResponseWriter, *http.Request, *view.Cluster) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := serve(w, r, o.Cluster); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

// The page is found without its slash. Its files are asked for anew after an upgrade, and
// no other site holds a window of them.
func TestWhereThePageIs(t *testing.T) {
	mux := http.NewServeMux()
	if err := Register(mux.Handle, closed{}, time.Now); err != nil {
		t.Fatal(err)
	}
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w
	}
	if w := get("/gpu"); w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != Path {
		t.Errorf("/gpu: %d to %q", w.Code, w.Header().Get("Location"))
	}
	for header, want := range map[string]string{"Cache-Control": "no-cache", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin"} {
		if got := get(Path).Header().Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
}

// The data says how old it is beside the body, which is the same until something changes.
func TestDataIsSentOnce(t *testing.T) {
	c := viewtest.Small()
	now := c.Synced.Add(1500 * time.Millisecond)
	mux := http.NewServeMux()
	if err := Register(mux.Handle, open{c}, func() time.Time { return now }); err != nil {
		t.Fatal(err)
	}
	get := func(etag string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("GET", Path+"data", nil), httptest.NewRecorder()
		r.Header.Set("If-None-Match", etag)
		mux.ServeHTTP(w, r)
		return w
	}
	first := get("")
	var body struct {
		Nodes []struct {
			Name string
			GPUs []struct{ Holders json.RawMessage }
		}
	}
	if err := json.Unmarshal(first.Body.Bytes(), &body); err != nil || first.Code != http.StatusOK || len(body.Nodes) != len(c.Nodes) {
		t.Fatalf("%d %s: %v", first.Code, first.Body, err)
	}
	for i := range body.Nodes {
		for k, g := range body.Nodes[i].GPUs {
			var got []view.Holder
			if err := json.Unmarshal(g.Holders, &got); err != nil || got == nil || len(got) != len(c.Nodes[i].GPUs[k].Holders) {
				t.Errorf("GPU %d of %s is held by %s, want a list of %d", k, body.Nodes[i].Name, g.Holders, len(c.Nodes[i].GPUs[k].Holders))
			}
		}
	}
	if h := first.Header(); h.Get("X-View-Age") != "1.5" || h.Get("X-View-Now") != now.UTC().Format(time.RFC3339Nano) {
		t.Errorf("headers %v", h)
	}
	now = now.Add(time.Second)
	if w := get(first.Header().Get("ETag")); w.Code != http.StatusNotModified || w.Header().Get("X-View-Age") != "2.5" {
		t.Errorf("a second later: %d, %s seconds old", w.Code, w.Header().Get("X-View-Age"))
	}
}

func TestDataIsCompact(t *testing.T) {
	text, err := json.Marshal(dataOf(viewtest.Large(200)))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := json.Marshal(viewtest.Large(200))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("200 nodes with 8 GPUs: %d KiB, the whole picture %d KiB", len(text)>>10, len(whole)>>10)
	if len(text) > len(whole)/4 {
		t.Errorf("the page's data is %d bytes, the whole picture %d", len(text), len(whole))
	}
	var back struct {
		At    *time.Time
		Nodes []struct {
			GPUs []struct {
				Instances int
				Runs      [][3]int
			}
		}
	}
	small, err := json.Marshal(dataOf(viewtest.Small()))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(small, &back); err != nil {
		t.Fatal(err)
	}
	if back.At != nil {
		t.Error("the body tells the time, so no two bodies are the same")
	}
	if got := back.Nodes[0].GPUs[0]; got.Instances != 40 || len(got.Runs) != 4 || got.Runs[3] != [3]int{-1, 12, 1} {
		t.Errorf("runs %+v", got)
	}
}

// TestRunsAreGathered: the slices of one task lie anywhere.
func TestRunsAreGathered(t *testing.T) {
	g := view.GPU{Holders: []view.Holder{{AllocID: "a", Task: "t"}, {AllocID: "b", Task: "t"}}}
	for _, who := range []string{"b", "", "a", "b", "a", "", "b"} {
		i := view.Instance{Healthy: true, AllocID: who}
		if who != "" {
			i.Task = "t"
		}
		g.Instances = append(g.Instances, i)
	}
	g.Instances = append(g.Instances, view.Instance{})
	want := []run{{0, 2, 1}, {1, 3, 1}, {-1, 2, 1}, {-1, 1, 0}}
	if got := runsOf(&g); !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
}

func TestRunsOfHiddenHolders(t *testing.T) {
	c := viewtest.Small().Redact(func(namespace string) bool { return namespace == "research" })
	if got := dataOf(c).Nodes[0].GPUs[0].Runs; !slices.Equal(got, []run{{0, 20, 1}, {1, 8, 1}, {-1, 12, 1}}) {
		t.Errorf("slices of a hidden job look free: %v", got)
	}
}
