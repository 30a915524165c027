// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve/reservetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// gate lets each token see some namespaces; the token "admin" sees all.
type gate struct {
	readers map[string]string
	down    bool
}

func (g gate) MayRead(_ context.Context, token string) error {
	switch _, known := g.readers[token]; {
	case g.down:
		return ErrNoAnswer
	case g.readers == nil, known, token == "admin":
		return nil
	}
	return fmt.Errorf("%w: read nodes", ErrDenied)
}

func (g gate) MayReadNamespace(_ context.Context, token, namespace string) error {
	if g.readers == nil || token == "admin" || g.readers[token] == namespace {
		return nil
	}
	return fmt.Errorf("%w: list jobs in namespace %q", ErrDenied, namespace)
}

func (g gate) MaySubmit(ctx context.Context, token, namespace string) error {
	return g.MayReadNamespace(ctx, token, namespace)
}

// past is what was done to jobs.
type past []view.Event

func (p past) Events(_ context.Context, key nomad.JobKey) ([]view.Event, error) {
	if key.ID == "away" {
		return nil, errors.New("no answer from Nomad")
	}
	return slices.DeleteFunc(slices.Clone(p), func(e view.Event) bool { return e.Namespace != key.Namespace || e.JobID != key.ID }), nil
}

type bench struct {
	*http.ServeMux
	keeper *reservetest.Keeper
	now    time.Time
}

func TestMain(m *testing.M) {
	flag.Parse()
	leaktest.Main(m)
}

func newBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	b := &bench{ServeMux: http.NewServeMux(), now: viewtest.Now}
	clock := func() time.Time { return b.now }
	b.keeper = reservetest.New(viewtest.Small(), clock)
	c := Config{Views: b.keeper, Keeper: b.keeper, Past: past(viewtest.Small().Events), Gate: gate{}, Now: clock, Logger: hclog.NewNullLogger(), ModelGB: map[string]float64{"V100": 32, "H100": 80, "A100": 80, "T4": 16}}
	if change != nil {
		change(&c)
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a.Register(b.Handle)
	return b
}

// do sends a request; header pairs follow the body.
func (b *bench) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct{ method, path, body string }{
		"status":             {"GET", "/api/v1/gpu/status", ""},
		"nodes":              {"GET", "/api/v1/gpu/nodes", ""},
		"nodes-v100":         {"GET", "/api/v1/gpu/nodes?gpu_type=V100&min_memory_gb=16", ""},
		"nodes-label":        {"GET", "/api/v1/gpu/nodes?gpu_type=nvidia-h100-80gb-hbm3&min_memory_gb=80", ""},
		"health":             {"GET", "/api/v1/gpu/health", ""},
		"monitoring":         {"GET", "/api/v1/gpu/monitoring", ""},
		"idle":               {"GET", "/api/v1/gpu/idle", ""},
		"idle-for":           {"GET", "/api/v1/gpu/idle?for=1h", ""},
		"events":             {"GET", "/api/v1/gpu/events?namespace=research&job=notebook-9", ""},
		"events-none":        {"GET", "/api/v1/gpu/events?job=notebook-9", ""},
		"error-events":       {"GET", "/api/v1/gpu/events", ""},
		"error-events-query": {"GET", "/api/v1/gpu/events?job=train&id=1", ""},
		"error-events-away":  {"GET", "/api/v1/gpu/events?job=away", ""},
		"error-for":          {"GET", "/api/v1/gpu/idle?for=long", ""},
		"validate":           {"POST", "/api/v1/gpu/validate", `{"gpu_count":1,"gpu_type":"V100","memory_gb":32.0}`},
		"validate-refused":   {"POST", "/api/v1/gpu/validate", `{"gpu_count":1,"gpu_type":"A100","memory_gb":80.0}`},
		"allocate":           {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_type":"V100","memory_gb":32.0,"distributed_training":true,"mixed_precision":true}`},
		"allocate-any":       {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`},
		"allocate-no-room":   {"POST", "/api/v1/gpu/allocate", `{"gpu_count":2,"gpu_type":"V100","memory_gb":32.0}`},
		"validate-no-room":   {"POST", "/api/v1/gpu/validate", `{"gpu_count":2,"gpu_type":"V100","memory_gb":32.0}`},
		"allocate-never":     {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_type":"V100","memory_gb":40}`},
		"reservations":       {"GET", "/api/v1/gpu/reservations", ""},
		"reservation":        {"GET", "/api/v1/gpu/reservations/r-7f3a", ""},
		"release":            {"DELETE", "/api/v1/gpu/reservations/r-7f3a", ""},
		"release-unknown":    {"DELETE", "/api/v1/gpu/reservations/r-none", ""},
		"setup-tensorflow":   {"POST", "/api/v1/gpu/setup-tensorflow", `{"gpu_count":1,"gpu_type":"V100","memory_gb":32.0,"gpu_memory_fraction":0.9}`},
		"setup-pytorch":      {"POST", "/api/v1/gpu/setup-pytorch", `{"gpu_count":2,"gpu_type":"A100","memory_gb":80.0,"distributed_training":true}`},
		"setup-share":        {"POST", "/api/v1/gpu/setup-pytorch", `{"request":"8G,0.5","memory_mode":"dynamic","mixed_precision":true,"reservation_id":"r-1"}`},
		"healthz":            {"GET", "/healthz", ""},
		"readyz":             {"GET", "/readyz", ""},
		"error-method":       {"PUT", "/api/v1/gpu/reservations/x", ""},
		"error-path":         {"GET", "/api/v1/gpus", ""},
		"error-query":        {"GET", "/api/v1/gpu/nodes?type=V100", ""},
		"error-query-number": {"GET", "/api/v1/gpu/nodes?min_memory_gb=NaN", ""},
		"error-field":        {"POST", "/api/v1/gpu/validate", `{"gpus":1}`},
		"error-type":         {"POST", "/api/v1/gpu/validate", `{"gpu_count":"1"}`},
		"error-fraction":     {"POST", "/api/v1/gpu/validate", `{"gpu_count":0.5}`},
		"error-model":        {"POST", "/api/v1/gpu/validate", `{"gpu_count":1,"gpu_type":"A 100"}`},
		"error-count":        {"POST", "/api/v1/gpu/allocate", `{"gpu_type":"V100"}`},
		"error-both":         {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"request":"8G"}`},
		"error-ttl":          {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"ttl_seconds":86401}`},
		"error-body":         {"POST", "/api/v1/gpu/allocate", `[]`},
		"error-twice":        {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_count":2}`},
		"error-trailing":     {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1} {}`},
		"error-mode":         {"POST", "/api/v1/gpu/setup-pytorch", `{"gpu_count":1,"memory_mode":"all"}`},
		"error-nodes":        {"POST", "/api/v1/gpu/setup-pytorch", `{"gpu_count":1,"nodes":3}`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBench(t, nil).do(test.method, test.path, test.body)
			if kind := w.Header().Get("Content-Type"); kind != "application/json" {
				t.Errorf("content type %q", kind)
			}
			golden.Compare(t, name+".txt", fmt.Sprintf("%s %s\n%s\n\n%d\n%s", test.method, test.path, test.body, w.Code, w.Body))
		})
	}
}

// Who may see a job is told what was done to it, and for whom if he may see that one too.
func TestWhoIsToldWhatWasDone(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.Gate = gate{readers: map[string]string{"research": "research", "serving": "serving"}}
	})
	const path = "/api/v1/gpu/events?namespace=research&job=notebook-9"
	for token, row := range map[string]struct {
		status int
		text   string
	}{"admin": {200, `"for":"serving/llm"`}, "research": {200, `"for":"(hidden)"`}, "serving": {403, "denied"}, "": {403, "denied"}} {
		w := b.do("GET", path, "", "X-Nomad-Token", token)
		if w.Code != row.status || !strings.Contains(w.Body.String(), row.text) || token != "admin" && strings.Contains(w.Body.String(), "llm") {
			t.Errorf("token %q: %d %s", token, w.Code, w.Body)
		}
	}
	tag := b.do("GET", path, "", "X-Nomad-Token", "admin").Header().Get("ETag")
	if w := b.do("GET", path, "", "X-Nomad-Token", "admin", "If-None-Match", tag); w.Code != http.StatusNotModified {
		t.Errorf("unchanged: %d", w.Code)
	}
}

func TestLongAndForeignBodies(t *testing.T) {
	b := newBench(t, nil)
	if w := b.do("POST", "/api/v1/gpu/allocate", `{"owner":"`+strings.Repeat("x", maxBody)+`"}`); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body gave %d", w.Code)
	}
	if w := b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`, "Content-Type", "text/plain"); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("another site's form gave %d", w.Code)
	}
}

// TestReservationLives takes a reservation through its life.
func TestReservationLives(t *testing.T) {
	b := newBench(t, nil)
	take := func() (Allocation, int) {
		w := b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_type":"V100","owner":"ada","ttl_seconds":60}`)
		var a Allocation
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		return a, w.Code
	}
	first, status := take()
	if status != http.StatusOK || first.ReservationID == "" || !first.ExpiresAt.Equal(b.now.Add(time.Minute)) {
		t.Fatalf("first: %d %+v", status, first)
	}
	if _, status = take(); status != http.StatusConflict {
		t.Errorf("the last GPU was given twice: %d", status)
	}
	if w := b.do("DELETE", "/api/v1/gpu/reservations/"+first.ReservationID, ""); w.Code != http.StatusOK {
		t.Errorf("release: %d %s", w.Code, w.Body)
	}
	if w := b.do("DELETE", "/api/v1/gpu/reservations/"+first.ReservationID, ""); w.Code != http.StatusNotFound {
		t.Errorf("second release: %d", w.Code)
	}
	if _, status = take(); status != http.StatusOK {
		t.Errorf("after release: %d", status)
	}
	b.now = b.now.Add(time.Minute)
	if _, status = take(); status != http.StatusOK {
		t.Errorf("after expiry: %d", status)
	}
}

// frozen is a picture that does not change.
type frozen struct{ *view.Cluster }

func (f frozen) View() (*view.Cluster, error) { return f.Cluster, nil }

// Regression: right after an allocation its reservation was not found, and one
// that was released was still shown.
func TestReservationIsKnownAtOnce(t *testing.T) {
	b := newBench(t, func(c *Config) {
		old, err := c.Views.View()
		if err != nil {
			t.Fatal(err)
		}
		c.Views = frozen{old}
	})
	var a Allocation
	if err := json.Unmarshal(b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_type":"V100"}`).Body.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	listed := func() bool {
		return strings.Contains(b.do("GET", "/api/v1/gpu/reservations", "").Body.String(), `"`+a.ReservationID+`"`)
	}
	if !listed() {
		t.Error("what is reserved is not in the list")
	}
	path := "/api/v1/gpu/reservations/" + a.ReservationID
	for i, step := range []struct {
		method string
		want   int
	}{{"GET", 200}, {"DELETE", 200}, {"GET", 404}, {"DELETE", 404}} {
		if w := b.do(step.method, path, ""); w.Code != step.want {
			t.Errorf("step %d, %s: %d %s", i, step.method, w.Code, w.Body)
		}
	}
	if listed() {
		t.Error("what was released is in the list")
	}
}

// TestNominalSize: an H100 reports less than its 80 GB, and still is the card
// that people mean.
func TestNominalSize(t *testing.T) {
	b := newBench(t, nil)
	for size, want := range map[string]int64{"32": 32_510, "16": 16_384, "0": 0, "40": 40_960} {
		b.do("POST", "/api/v1/gpu/validate", `{"gpu_count":1,"gpu_type":"V100","memory_gb":`+size+`}`)
		if got := b.keeper.Wants[len(b.keeper.Wants)-1].MinMemoryMiB; got != want {
			t.Errorf("%s GB became %d MiB, want %d", size, got, want)
		}
	}
}

// TestReservationsAreAudited: every answer about a reservation is noted, with
// the token apart.
func TestReservationsAreAudited(t *testing.T) {
	var noted []string
	b := newBench(t, func(c *Config) {
		c.Gate = gate{readers: map[string]string{"ada": "research"}}
		c.Audit = func(_ *http.Request, token string, e Audited) {
			noted = append(noted, fmt.Sprintf("%s: %+v", token, e))
		}
	})
	for _, row := range [][3]string{
		{"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"research"}`},
		{"POST", "/api/v1/gpu/allocate", `{"gpu_count":9,"namespace":"research"}`},
		{"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"serving"}`},
		{"DELETE", "/api/v1/gpu/reservations/r-1", ""},
	} {
		b.do(row[0], row[1], row[2], "X-Nomad-Token", "ada")
	}
	want := []string{
		"ada: {Action:reserve Status:200 Namespace:research Queue: Ask:1 Node:gpu-node-3 Reservation:r-1 Reason:}",
		"ada: {Action:reserve Status:422 Namespace:research Queue: Ask:9 Node: Reservation: Reason:no GPU of the cluster can ever hold 9}",
		`ada: {Action:reserve Status:403 Namespace:serving Queue: Ask:1 Node: Reservation: Reason:permission denied: list jobs in namespace "serving"}`,
		"ada: {Action:release Status:200 Namespace:research Queue: Ask: Node:gpu-node-3 Reservation:r-1 Reason:}",
	}
	if diff := cmp.Diff(want, noted); diff != "" {
		t.Error(diff)
	}
}

func TestBlind(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.Views, c.Gate = viewtest.Source{Err: errors.New("nomad has not answered yet")}, gate{down: true}
	})
	for _, path := range []string{"status", "nodes", "health", "monitoring", "cluster", "reservations"} {
		w := b.do("GET", "/api/v1/gpu/"+path, "")
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "nomad has not answered yet") || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("allocate: %d", w.Code)
	}
	if w := b.do("GET", "/readyz", ""); w.Code != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d", w.Code)
	}
	if w := b.do("GET", "/healthz", ""); w.Code != http.StatusOK {
		t.Errorf("healthz: %d", w.Code)
	}
}

func TestStaleIsNotReady(t *testing.T) {
	b := newBench(t, nil)
	b.now = b.now.Add(2 * time.Minute)
	if w := b.do("GET", "/readyz", ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "2m2s ago") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestTokens(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Gate = gate{readers: map[string]string{"ada": "research"}} })
	for name, test := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		has, hasNot        string
	}{
		"no token":          {"GET", "/api/v1/gpu/status", "", nil, 403, "permission denied", ""},
		"wrong token":       {"GET", "/api/v1/gpu/status", "", []string{"X-Nomad-Token", "eve"}, 403, "permission denied", ""},
		"bearer":            {"GET", "/api/v1/gpu/status", "", []string{"Authorization", "Bearer ada"}, 200, "utilization", ""},
		"own namespace":     {"GET", "/api/v1/gpu/cluster", "", []string{"X-Nomad-Token", "ada"}, 200, "notebook-3", "llm"},
		"admin":             {"GET", "/api/v1/gpu/cluster", "", []string{"X-Nomad-Token", "admin"}, 200, "llm-large", view.Hidden},
		"reserve elsewhere": {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"serving"}`, []string{"X-Nomad-Token", "ada"}, 403, "serving", ""},
		"reserve":           {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"research"}`, []string{"X-Nomad-Token", "ada"}, 200, "reservation_id", ""},
		"reserve unknown":   {"POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"research"}`, nil, 403, "research", ""},
		"ask elsewhere":     {"POST", "/api/v1/gpu/validate", `{"gpu_count":1,"namespace":"serving"}`, []string{"X-Nomad-Token", "ada"}, 403, "serving", ""},
		"release unknown":   {"DELETE", "/api/v1/gpu/reservations/r-7f3a", "", []string{"X-Nomad-Token", "eve"}, 404, "r-7f3a", ""},
		"setup is open":     {"POST", "/api/v1/gpu/setup-pytorch", `{"gpu_count":1}`, nil, 200, "environment", ""},
		"openapi is open":   {"GET", "/api/v1/openapi.json", "", nil, 200, "openapi", ""},
		"readyz is open":    {"GET", "/readyz", "", nil, 200, "ready", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := b.do(test.method, test.path, test.body, test.header...)
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.has) {
				t.Errorf("%d %s; want %d with %q", w.Code, w.Body, test.status, test.has)
			}
			if test.hasNot != "" && strings.Contains(w.Body.String(), test.hasNot) {
				t.Errorf("the answer names %q", test.hasNot)
			}
		})
	}
	silent := newBench(t, func(c *Config) { c.Gate = gate{down: true} })
	if w := silent.do("GET", "/api/v1/gpu/status", ""); w.Code != http.StatusBadGateway {
		t.Errorf("without Nomad: %d", w.Code)
	}
}

// TestTheClusterInPages: every node stands on one page, and all that is no node on the first.
func TestTheClusterInPages(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Views = viewtest.Source{Cluster: viewtest.Large(25)} })
	var names []string
	next := ""
	for pages := 1; ; pages++ {
		w := b.do("GET", "/api/v1/gpu/cluster?per_page=10"+next, "")
		var c view.Cluster
		if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		for _, n := range c.Nodes {
			names = append(names, n.Name)
		}
		if (len(c.Queues) > 0) != (pages == 1) || len(c.Nodes) > 10 {
			t.Errorf("page %d has %d queues and %d nodes", pages, len(c.Queues), len(c.Nodes))
		}
		if c.Next == "" {
			break
		}
		next = "&next=" + c.Next
	}
	if slices.Sort(names); len(names) != 25 || len(slices.Compact(names)) != 25 {
		t.Errorf("nodes %q", names)
	}
	for _, query := range []string{"per_page=0", "per_page=many", "next=x", "page=1"} {
		if w := b.do("GET", "/api/v1/gpu/cluster?"+query, ""); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}

func TestClusterTag(t *testing.T) {
	b := newBench(t, nil)
	first := b.do("GET", "/api/v1/gpu/cluster", "")
	tag := first.Header().Get("ETag")
	if again := b.do("GET", "/api/v1/gpu/cluster", "", "If-None-Match", tag); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("unchanged: %d, %d bytes", again.Code, again.Body.Len())
	}
	b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`)
	if changed := b.do("GET", "/api/v1/gpu/cluster", "", "If-None-Match", tag); changed.Code != http.StatusOK {
		t.Errorf("changed: %d", changed.Code)
	}
}

type leadership struct {
	address string
	self    bool
}

func (l leadership) Secret() string { return "of the leader" }

func (l leadership) Leader() (string, bool) { return l.address, l.self }

func TestFollowersPassOn(t *testing.T) {
	leader := newBench(t, nil)
	server := httptest.NewServer(leader)
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	follower := newBench(t, func(c *Config) { c.Leadership, c.Forward = leadership{address: server.URL}, transport })
	w := follower.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`)
	if w.Code != http.StatusOK || len(leader.keeper.Wants) != 1 || len(follower.keeper.Wants) != 0 {
		t.Errorf("%d %s; the leader was asked %d times, the follower %d", w.Code, w.Body, len(leader.keeper.Wants), len(follower.keeper.Wants))
	}
	if w := follower.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`, peer.Forwarded, "1"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a request in a circle: %d", w.Code)
	}
	orphan := newBench(t, func(c *Config) { c.Leadership = leadership{} })
	if w := orphan.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without a leader: %d", w.Code)
	}
	if w := orphan.do("GET", "/api/v1/gpu/status", ""); w.Code != http.StatusOK {
		t.Errorf("reading without a leader: %d", w.Code)
	}
	gone := newBench(t, func(c *Config) { c.Leadership = leadership{address: "http://127.0.0.1:1"} })
	if w := gone.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("the leader is gone: %d", w.Code)
	}
}

// The training gets the GPUs that were asked for, shared evenly by its nodes.
func TestSetupGivesTheGPUsThatWereAskedFor(t *testing.T) {
	for _, row := range []struct {
		gpus, nodes  int
		count, ranks string
	}{{4, 0, `gpu = "2(A100)"`, "count = 2"}, {4, 4, `gpu = "1(A100)"`, "count = 4"}, {3, 0, `gpu = "1(A100)"`, "count = 3"}, {1, 0, `gpu = "1(A100)"`, "count = 1"}} {
		reply, err := setupOf(SetupRequest{GPUCount: row.gpus, GPUType: "A100", DistributedTraining: true, Nodes: row.nodes}, framework.PyTorch)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(reply.JobFragment), " ")
		if reply.GPUConfig.GPUCount != row.gpus || !strings.Contains(text, row.count) || !strings.Contains(text, row.ranks) {
			t.Errorf("%d GPUs on %d nodes: told %d, written\n%s", row.gpus, row.nodes, reply.GPUConfig.GPUCount, reply.JobFragment)
		}
	}
	if _, err := setupOf(SetupRequest{GPUCount: 4, DistributedTraining: true, Nodes: 3}, framework.PyTorch); err == nil {
		t.Error("four GPUs were shared evenly by three nodes")
	}
}

// TestFragmentsAreHCL reads every fragment as Nomad would, and its meta as
// admission would.
func TestFragmentsAreHCL(t *testing.T) {
	for _, body := range []SetupRequest{
		{GPUCount: 1}, {GPUCount: 8, GPUType: "A100", DistributedTraining: true, Nodes: 4, MixedPrecision: true},
		{Request: "0.5(nvidia,H100)", MemoryMode: "dynamic"}, {Request: "8G,0.5", GPUMemoryFraction: 0.123, ReservationID: "r-1"},
	} {
		reply, err := setupOf(body, framework.PyTorch)
		if err != nil {
			t.Fatal(err)
		}
		if _, diagnostics := hclparse.NewParser().ParseHCL([]byte(reply.JobFragment), "fragment"); diagnostics.HasErrors() {
			t.Errorf("%v:\n%s", diagnostics, reply.JobFragment)
		}
		meta := map[string]string{}
		for _, line := range strings.Split(reply.JobFragment, "\n") {
			if key, value, ok := strings.Cut(line, " = "); ok && strings.HasPrefix(strings.TrimSpace(key), "gpu") {
				meta[strings.TrimSpace(key)] = strings.Trim(value, `"`)
			}
		}
		if _, found, err := framework.ParseMeta(meta); err != nil || !found {
			t.Errorf("meta %v: %v", meta, err)
		}
		if _, err := gpu.ParseRequest(meta["gpu"]); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenAPI holds the document to the code: every operation, every field.
func TestOpenAPI(t *testing.T) {
	var document struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(openapiDocument, &document); err != nil {
		t.Fatal(err)
	}
	operations := 0
	for _, methods := range document.Paths {
		operations += len(methods)
	}
	if operations != len(routes) {
		t.Errorf("the document has %d operations, the code %d", operations, len(routes))
	}
	for _, r := range routes {
		if _, ok := document.Paths[r.path][strings.ToLower(r.method)]; !ok {
			t.Errorf("%s %s is not in the document", r.method, r.path)
		}
	}
	for _, body := range []any{Failure{}, Utilization{}, NodeStatus{}, Status{}, NodeDetail{}, NodeList{}, Problem{}, Health{}, GPUReading{}, Monitoring{}, Want{}, AllocateRequest{}, GPUConfig{}, Allocation{}, Validation{}, Reservation{}, SetupRequest{}, SetupAnswer{}, Alive{}, ledger.Report{}, ledger.Row{}, ledger.Used{}, Advices{}, ledger.Advice{}, view.IdleReport{}, view.Idle{}, view.Fits{}, JobEvents{}, view.Event{}} {
		kind := reflect.TypeOf(body)
		var want, got []string
		for _, field := range reflect.VisibleFields(kind) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				want = append(want, name)
			}
		}
		for name := range document.Components.Schemas[kind.Name()].Properties {
			got = append(got, name)
		}
		if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))); diff != "" {
			t.Errorf("schema %s (-code +document):\n%s", kind.Name(), diff)
		}
	}
}
