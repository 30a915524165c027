// SPDX-License-Identifier: MPL-2.0

package api

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// asJSON reads an answer.
func asJSON[T any](t *testing.T, w *httptest.ResponseRecorder) (body T) {
	t.Helper()
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	return body
}

// Ready is what heard from Nomad a minute ago at most, and says how long ago, never less than
// nothing.
func TestReadyUpToAMinute(t *testing.T) {
	for ago, want := range map[time.Duration]int{
		0: 200, -time.Second: 200, 1500 * time.Millisecond: 200, time.Minute: 200, time.Minute + 1: 503,
	} {
		b := newBench(t, func(c *Config) {
			c.Heard = func() (time.Time, error) { return viewtest.Now.Add(-ago), nil }
		})
		w := b.do("GET", "/readyz", "")
		if w.Code != want {
			t.Errorf("heard %s ago: %d %s", ago, w.Code, w.Body)
		}
		var alive Alive
		if err := json.Unmarshal(w.Body.Bytes(), &alive); want == 200 && (err != nil || alive.Status != "ready" || *alive.AgeSeconds != max(0, ago.Seconds())) {
			t.Errorf("heard %s ago: %s", ago, w.Body)
		}
	}
}

// The nodes that are offered are those that new work could get something of; the total are all
// that have GPUs.
func TestWhichNodesAreAvailable(t *testing.T) {
	ready := func(name string, gpus ...view.GPU) view.Node {
		return view.Node{ID: "id-" + name, Name: name, Status: "ready", Eligible: true, GPUs: gpus}
	}
	free := view.GPU{UUID: "free", Type: "T4", Mode: "whole", MemoryMiB: 16 << 10, Healthy: true, Instances: make([]view.Instance, 1)}
	change := func(g view.GPU, f func(*view.GPU)) view.GPU { f(&g); return g }
	sliced := view.GPU{UUID: "sliced", Type: "T4", Mode: "slice", MemoryMiB: 16 << 10, SliceMemoryMiB: 1024, Healthy: true, Instances: make([]view.Instance, 16)}
	c := &view.Cluster{At: viewtest.Now, Nodes: []view.Node{
		ready("whole", free),
		ready("no-gpus"),
		ready("held", change(free, func(g *view.GPU) { g.HeldInstances = 1 })),
		ready("sick", change(free, func(g *view.GPU) { g.Healthy = false })),
		ready("cordoned", change(sliced, func(g *view.GPU) { g.Cordoned = true })),
		ready("part", change(sliced, func(g *view.GPU) { g.HeldInstances, g.HeldMilli = 8, 500 })),
		ready("no-compute", change(sliced, func(g *view.GPU) { g.HeldInstances, g.HeldMilli = 8, 1000 })),
		ready("no-memory", change(sliced, func(g *view.GPU) { g.HeldInstances, g.HeldMilli = 16, 500 })),
		ready("reserved", change(free, func(g *view.GPU) { g.UUID = "reserved" })),
		ready("claimed", change(free, func(g *view.GPU) { g.UUID = "claimed" })),
		{ID: "id-down", Name: "down", Status: "down", Eligible: true, GPUs: []view.GPU{free}},
	}, Holds: []view.Hold{{ID: "r-1", GPUs: []string{"reserved"}}, {ID: "r-2", GPUs: []string{"claimed"}, ClaimedBy: "default/job"}}}
	b := newBench(t, func(config *Config) { config.Views = viewtest.Source{Cluster: c} })
	s := asJSON[struct {
		AvailableNodes []NodeStatus `json:"available_nodes"`
		TotalNodes     int          `json:"total_nodes"`
	}](t, b.do("GET", "/api/v1/gpu/status", ""))
	var names []string
	for _, n := range s.AvailableNodes {
		names = append(names, fmt.Sprint(n.NodeName, n.AvailableGPUs))
	}
	if want := []string{"whole1", "part0", "claimed1"}; !slices.Equal(names, want) || s.TotalNodes != 10 {
		t.Errorf("available are %v, want %v; %d in all", names, want, s.TotalNodes)
	}
}

// A node's GPUs are grouped by type and size, in its order, and add up.
func TestDetailsOfANode(t *testing.T) {
	v := view.GPU{UUID: "v", Type: "V100", Model: "Tesla V100", Mode: "whole", MemoryMiB: 16 << 10, Healthy: true, Instances: make([]view.Instance, 1)}
	s := view.GPU{UUID: "s", Type: "T4", Model: "Tesla T4", Mode: "slice", MemoryMiB: 15 << 10, SliceMemoryMiB: 1024, Healthy: true, Instances: make([]view.Instance, 15), HeldInstances: 5, HeldMilli: 300, HeldMemoryMiB: 5 << 10}
	large, sick, instance := v, v, v
	large.MemoryMiB, sick.Healthy, instance.ParentUUID = 32<<10, false, "v"
	s.Measured = view.Measured{Milli: 500, MemoryMiB: view.Unmeasured}
	a := &API{Config{ModelGB: map[string]float64{"T4": 16}}}
	n := &view.Node{ID: "id", Name: "n", Status: "ready", Eligible: true, GPUs: []view.GPU{v, s, sick, large, instance}}
	list := a.details(n, filter{}, nil)
	if len(list) != 3 {
		t.Fatalf("got %+v", list)
	}
	whole, sliced, other := list[0], list[1], list[2]
	if whole.GPUType != "V100" || whole.MemoryPerGPU != 16 || whole.TotalGPUs != 2 || whole.HealthyGPUs != 1 || whole.AvailableGPUs != 1 || whole.FreeMemoryGB != 16 || whole.FreeCompute != 1 || len(whole.GPUs) != 2 || whole.GPUs[1].FreeCompute != 0 || !whole.Ready || whole.NodeID != "id" || whole.NodeName != "n" {
		t.Errorf("the first: %+v", whole)
	}
	if sliced.GPUType != "T4" || sliced.MemoryPerGPU != 16 || sliced.AvailableGPUs != 0 || sliced.FreeMemoryGB != 10 || sliced.FreeCompute != 0.7 || sliced.Utilization != 0.5 || sliced.GPUs[0].Mode != "slice" || sliced.GPUs[0].UUID != "s" {
		t.Errorf("the second: %+v", sliced)
	}
	if other.MemoryPerGPU != 32 || other.TotalGPUs != 1 || other.FreeMemoryGB != 32 {
		t.Errorf("the third: %+v", other)
	}
	for name, f := range map[string]struct {
		f    filter
		want int
	}{
		"a type": {filter{types: []string{"v100"}}, 2}, "a model": {filter{types: []string{"tesla-t4"}}, 1}, "one of two": {filter{types: []string{"H100", "Tesla T4"}}, 1},
		"not a type": {filter{not: []string{"V100"}}, 1}, "of a size": {filter{memoryGB: 16}, 3}, "above a size": {filter{memoryGB: 16.1}, 1}, "none": {filter{types: []string{"A100"}}, 0},
	} {
		if got := a.details(n, f.f, nil); len(got) != f.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The operator's figure for a type counts where the hardware is within a tenth of it, and
// never for a part of a card.
func TestNominalSizesAreNearWhatIsReported(t *testing.T) {
	a := &API{Config{ModelGB: map[string]float64{"T": 100}}}
	for mib, want := range map[int64]gb{100 << 10: 100, 90 << 10: 100, 110 << 10: 100, 89 << 10: 89, 111 << 10: 111} {
		if got := a.nominalGB(&view.GPU{Type: "T", MemoryMiB: mib}); got != want {
			t.Errorf("%d MiB are %v GB, want %v", mib, got, want)
		}
		if got := a.nominalGB(&view.GPU{Type: "T", Profile: "3g.40gb", MemoryMiB: mib}); got != gb(float64(mib)/1024) {
			t.Errorf("an instance of %d MiB has %v GB", mib, got)
		}
	}
	if got := a.nominalGB(&view.GPU{Type: "U", MemoryMiB: 1536}); got != 1.5 {
		t.Errorf("an unknown type has %v GB", got)
	}
}

// keeping is a keeper that answers as the test says.
type keeping struct {
	hold view.Hold
	err  error
	want reserve.Want
}

func (k *keeping) Reserve(_ context.Context, w reserve.Want, _ bool) (view.Hold, error) {
	k.want = w
	return k.hold, k.err
}
func (k *keeping) Held(string) (view.Hold, error)        { return k.hold, k.err }
func (k *keeping) All() []view.Hold                      { return []view.Hold{k.hold} }
func (k *keeping) Release(context.Context, string) error { return k.err }

// What is reserved is told as it was asked for; what the caller left open as it is.
func TestWhatWasUnderstoodIsTold(t *testing.T) {
	const v100, h100 = "GPU-c0000002-0000", "MIG-b0000002-0000"
	for name, row := range map[string]struct {
		body string
		gpus []string
		want GPUConfig
	}{
		"all said":               {`{"gpu_count":2,"gpu_type":"V100","memory_gb":16}`, []string{v100}, GPUConfig{2, "V100", 16, false}},
		"a type":                 {`{"gpu_count":1,"gpu_type":"V100"}`, []string{v100}, GPUConfig{1, "V100", 32, false}},
		"nothing":                {`{"gpu_count":1}`, []string{v100}, GPUConfig{1, "V100", 32, false}},
		"one of two types":       {`{"request":"1(V100|H100)"}`, []string{h100}, GPUConfig{1, "H100", 39.5, false}},
		"a part":                 {`{"request":"8G,0.5"}`, []string{v100}, GPUConfig{1, "V100", 8, false}},
		"a fraction":             {`{"request":"0.5"}`, []string{v100}, GPUConfig{1, "V100", 0, false}},
		"distributed":            {`{"gpu_count":2,"distributed_training":true}`, []string{v100}, GPUConfig{2, "V100", 32, true}},
		"nothing is known of it": {`{"gpu_count":1}`, nil, GPUConfig{1, "", 0, false}},
		"a GPU that left":        {`{"gpu_count":1}`, []string{"gone"}, GPUConfig{1, "", 0, false}},
	} {
		k := &keeping{hold: view.Hold{ID: "r-1", NodeName: "n", GPUs: row.gpus, ExpiresAt: viewtest.Now}}
		b := newBench(t, func(c *Config) { c.Keeper = k })
		got := asJSON[Allocation](t, b.do("POST", "/api/v1/gpu/allocate", row.body))
		if got.GPUConfig != row.want || got.NodeName != "n" || got.ReservationID != "r-1" || !got.Success {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
		if k.want.Close != (name == "distributed") {
			t.Errorf("%s: close %v", name, k.want.Close)
		}
	}
}

// GPUs of one alloc are close to each other, if it has several.
func TestOneGPUIsCloseToItself(t *testing.T) {
	for count, want := range map[int]bool{1: false, 2: true} {
		k := &keeping{hold: view.Hold{ID: "r-1"}}
		b := newBench(t, func(c *Config) { c.Keeper = k })
		b.do("POST", "/api/v1/gpu/allocate", fmt.Sprintf(`{"gpu_count":%d,"distributed_training":true,"owner":"ada","queue":"q","ttl_seconds":90}`, count))
		if k.want.Close != want || k.want.Owner != "ada" || k.want.Queue != "q" || k.want.For != 90*time.Second || k.want.Namespace != "default" {
			t.Errorf("%d GPUs: %+v", count, k.want)
		}
	}
}

// An excluded type is not the smallest GPU that will do; where the smallest is larger than what
// is asked for, that is not asked for.
func TestTheSmallestGPUIsOneThatIsMeant(t *testing.T) {
	a := &API{Config{ModelGB: map[string]float64{}}}
	c := &view.Cluster{Nodes: []view.Node{{GPUs: []view.GPU{{Type: "T4", MemoryMiB: 15 << 10}, {Type: "V100", MemoryMiB: 30 << 10}}}}}
	for text, want := range map[string]int64{"1": 10 << 10, "1(!T4)": 10 << 10} {
		r, err := gpu.ParseRequest(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.smallest(c, r, 10); got != want {
			t.Errorf("%s: %d MiB, want %d", text, got, want)
		}
	}
	a.ModelGB["V100"] = 32
	not, _ := gpu.ParseRequest("1(!V100)")
	if got := a.smallest(c, not, 31); got != 31<<10 {
		t.Errorf("what is excluded counts: %d MiB", got)
	}
	any, _ := gpu.ParseRequest("1")
	if got := a.smallest(c, any, 31); got != 30<<10 {
		t.Errorf("a card of 32 GB that has 30 GiB does not do for 31: %d MiB", got)
	}
}

// Whatever the keeper or the gate says reaches the caller with its status; nothing is
// noted where no one takes notes.
func TestFailuresOfReservationsAreTold(t *testing.T) {
	refusal := &admit.Refusal{Status: http.StatusConflict, Text: "no room", Details: []string{"why"}}
	for name, row := range map[string]struct {
		err             error
		take, list, one int
		release         int
		has             string
	}{
		"a refusal":     {refusal, 409, 200, 409, 409, "no room"},
		"one that fits": {reserve.NewInstead(refusal, view.Fits{Ask: "2G", Allocs: 1, Nodes: 3}), 409, 200, 409, 409, `"would_fit":{"ask":"2G","allocs":1,"nodes":3}`},
		"unknown":       {fmt.Errorf("x: %w", reserve.ErrNotFound), 404, 200, 404, 404, "no such reservation"},
		"no answer":     {ErrNoAnswer, 502, 200, 502, 502, "nomad does not answer"},
		"a bug":         {errors.New("secret"), 500, 200, 500, 500, "internal error"},
	} {
		b := newBench(t, func(c *Config) { c.Keeper = &keeping{err: row.err} })
		for _, call := range []struct {
			method, path string
			want         int
		}{{"POST", "/allocate", row.take}, {"GET", "/reservations", row.list}, {"GET", "/reservations/x", row.one}, {"DELETE", "/reservations/x", row.release}} {
			body := ""
			if call.method == "POST" {
				body = `{"gpu_count":1}`
			}
			w := b.do(call.method, "/api/v1/gpu"+call.path, body)
			if w.Code != call.want || call.want != 200 && !strings.Contains(w.Body.String(), row.has) || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s, %s %s: %d %s", name, call.method, call.path, w.Code, w.Body)
			}
			if retry := w.Header().Get("Retry-After"); retry != "" {
				t.Errorf("%s: retry after %s", name, retry)
			}
		}
	}
}

// A validation says no as an answer, and fails only where it was not decided.
func TestAValidationThatFails(t *testing.T) {
	refusal := &admit.Refusal{Status: http.StatusConflict, Text: "no room", Details: []string{"why"}}
	b := newBench(t, func(c *Config) { c.Keeper = &keeping{err: refusal} })
	if v := asJSON[Validation](t, b.do("POST", "/api/v1/gpu/validate", `{"gpu_count":1}`)); v.Valid || v.Reason != "no room" || !slices.Equal(v.Details, []string{"why"}) || v.WouldFit != nil {
		t.Errorf("got %+v", v)
	}
	b = newBench(t, func(c *Config) { c.Keeper = &keeping{err: ErrNoAnswer} })
	if w := b.do("POST", "/api/v1/gpu/validate", `{"gpu_count":1}`); w.Code != http.StatusBadGateway {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// What Nomad does not say is not taken for a no: neither are reservations left out of a list,
// nor names of a picture.
func TestWhatTheCallerMaySeeIsKnownOrNotTold(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Gate = muted{asked: map[string]int{}} })
	for _, path := range []string{"reservations", "reservations/r-7f3a", "cluster", "status"} {
		if w := b.do("GET", "/api/v1/gpu/"+path, ""); w.Code != http.StatusBadGateway || strings.Contains(w.Body.String(), "research") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		elsewhere := newBench(t, func(c *Config) { c.Gate = gate{readers: map[string]string{"ada": "serving"}} })
		if w := elsewhere.do(method, "/api/v1/gpu/reservations/r-7f3a", "", "X-Nomad-Token", "ada"); w.Code != http.StatusNotFound {
			t.Errorf("of another namespace: %d %s", w.Code, w.Body)
		}
	}
	one := newBench(t, func(c *Config) { c.Gate = gate{readers: map[string]string{"ada": "serving"}} })
	list := asJSON[struct{ Reservations []Reservation }](t, one.do("GET", "/api/v1/gpu/reservations", "", "X-Nomad-Token", "ada"))
	if len(list.Reservations) != 1 || list.Reservations[0].ReservationID != "r-b21c" || list.Reservations[0].MemoryGB != 4 {
		t.Errorf("of its own namespace: %+v", list)
	}
}

// The ages and times that were not set are the documented ones.
func TestDefaultsOfTheAPI(t *testing.T) {
	var whole Config
	newBench(t, func(c *Config) { whole = *c })
	whole.Now, whole.Heard = nil, nil
	a, err := New(whole)
	if err != nil || a.StaleAfter != time.Minute || a.DefaultHold != 10*time.Minute || a.LongestHold != 24*time.Hour || a.Now == nil {
		t.Fatalf("got %+v, %v", a, err)
	}
	if heard, err := a.Heard(); err != nil || !heard.Equal(viewtest.Now.Add(-2*time.Second)) {
		t.Errorf("heard at %s, %v", heard, err)
	}
	whole.StaleAfter, whole.DefaultHold, whole.LongestHold = time.Second, time.Minute, time.Hour
	if a, err := New(whole); err != nil || a.StaleAfter != time.Second || a.DefaultHold != time.Minute || a.LongestHold != time.Hour {
		t.Errorf("got %+v, %v", a, err)
	}
	k := &keeping{}
	b := newBench(t, func(c *Config) { c.Keeper, c.DefaultHold = k, 7*time.Minute })
	b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`)
	if k.want.For != 7*time.Minute {
		t.Errorf("held for %s", k.want.For)
	}
}

// An answer of the leader that is too long, breaks off or has no address is told as one of a
// leader that does not answer.
func TestAnswersOfTheLeaderThatAreNone(t *testing.T) {
	broken := errors.New("it breaks off")
	for name, row := range map[string]struct {
		address string
		answer  io.Reader
		has     string
	}{
		"it breaks off":           {"http://leader", io.MultiReader(strings.NewReader("{"), failingReader{broken}), "does not answer"},
		"no address":              {"", nil, "no replica of the service leads now"},
		"an address that is none": {"http://[", nil, "no replica of the service leads now"},
	} {
		way := &passing{requests: make(chan *http.Request, 1), answer: io.NopCloser(row.answer)}
		b := newBench(t, func(c *Config) { c.Leadership, c.Forward = leadership{address: row.address}, way })
		w := b.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), row.has) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	self := newBench(t, func(c *Config) { c.Leadership = leadership{address: "http://leader", self: true} })
	if w := self.do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`); w.Code != http.StatusOK || len(self.keeper.Wants) != 1 {
		t.Errorf("the leader itself: %d %s", w.Code, w.Body)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// The leader is told who asked, and knows that a replica passed it on.
func TestTheLeaderIsToldWhoAsked(t *testing.T) {
	way := &passing{requests: make(chan *http.Request, 1), answer: io.NopCloser(strings.NewReader("{}"))}
	newFollower(t, way).do("POST", "/api/v1/gpu/allocate", `{"gpu_count":1}`, "X-Nomad-Token", "ada")
	r := <-way.requests
	if r.Header.Get(peer.Forwarded) != "of the leader" || r.Header.Get("X-Forwarded-For") == "" || r.Header.Get("X-Nomad-Token") != "ada" || r.URL.Host != "leader" || r.URL.Path != "/api/v1/gpu/allocate" {
		t.Errorf("asked %s with %v", r.URL, r.Header)
	}
}

// A large answer is compressed for those who can read that, a small one for none; each says on
// what it depends.
func TestLargeAnswersAreCompressed(t *testing.T) {
	for size, want := range map[int]string{smallBody - 2: "", smallBody - 1: "gzip"} { // a string has two quotes
		for accepted, encoded := range map[string]string{"gzip, br": want, "br": ""} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept-Encoding", accepted)
			if err := Tagged(w, r, strings.Repeat("x", size)); err != nil {
				t.Fatal(err)
			}
			h := w.Header()
			if h.Get("Content-Encoding") != encoded || h.Get("Cache-Control") != "private, no-cache" || !strings.Contains(h.Get("Vary"), "X-Nomad-Token") || h.Get("Content-Type") != "application/json" {
				t.Errorf("%d bytes for %s: %v", size, accepted, h)
			}
			text := io.Reader(w.Body)
			if encoded != "" {
				unpacked, err := gzip.NewReader(text)
				if err != nil {
					t.Fatal(err)
				}
				text = unpacked
			}
			if got, err := io.ReadAll(text); err != nil || string(got) != `"`+strings.Repeat("x", size)+`"` {
				t.Errorf("%d bytes for %s: %d bytes arrive, %v", size, accepted, len(got), err)
			}
		}
	}
	if err := Tagged(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), func() {}); err == nil {
		t.Error("a function was encoded")
	}
}
