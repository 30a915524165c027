// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// shelf has an entry of two teams, an hour each, and remembers what was asked.
type shelf struct {
	from, to time.Time
	fails    error
}

func (s *shelf) Prices() (ledger.Prices, string) {
	return ledger.Prices{{For: ledger.Any, GPUHour: 2_000_000}}, "EUR"
}

func (s *shelf) Entries(_ context.Context, from, to time.Time, each func(*ledger.Entry)) error {
	s.from, s.to = from, to
	for _, team := range []string{"research", "serving"} {
		e := ledger.Entry{Key: ledger.Key{Alloc: "alloc-" + team, Task: "task-" + team, GPU: "GPU-1"}, From: to.Add(-time.Hour), To: to,
			Hold: ledger.Hold{Namespace: team, Job: "job-" + team, Group: "group-" + team, Queue: team, Node: "n1", Type: "H100", Mode: "slice", Milli: 500, MemoryMiB: 16384, AskedMilli: 500, AskedMiB: 16384}}
		for range 100 {
			e.Compute.Add(100)
			e.Memory.Add(1000)
		}
		each(&e)
	}
	return s.fails
}

func TestLedgerIsAnswered(t *testing.T) {
	s := &shelf{}
	b := newBench(t, func(c *Config) { c.Books, c.Gate = s, gate{readers: map[string]string{"ada": "research"}} })
	for path, tc := range map[string]struct {
		token       string
		status      int
		has, hasNot string
	}{
		"/ledger":                          {"admin", 200, `"queue":"serving","entries":1,"gpu_hours":0.5,"gib_hours":16,"cost":1,`, ""},
		"/ledger?by=namespace":             {"ada", 200, `"namespace":"(hidden)","entries":1`, "serving"},
		"/ledger?by=entry":                 {"ada", 200, `"job":"job-research"`, "job-serving"},
		"/ledger?by=job&format=csv":        {"admin", 200, "serving,serving,job-serving,group-serving,task-serving,1,0.5,16,0.5,0.1,0.1,16,", ""},
		"/ledger?by=team":                  {"admin", 400, `by: \"team\" is not valid`, ""},
		"/ledger?format=xml":               {"admin", 400, `format: \"xml\" is not valid (json, csv)`, ""},
		"/ledger?month=10-2026":            {"admin", 400, `month: \"10-2026\" is not valid`, ""},
		"/ledger?month=2025-10&to=2025-11": {"admin", 400, "without from and to", ""},
		"/ledger?from=yesterday":           {"admin", 400, `from: \"yesterday\" is not valid`, ""},
		"/ledger?from=2100-01-01":          {"admin", 400, "from: 2100-01-01T00:00:00Z is not valid", ""},
		"/ledger?since=1":                  {"admin", 400, `unknown parameter \"since\"`, ""},
		"/ledger/advice":                   {"ada", 200, `"enough":"2G,0.15"`, "job-serving"},
		"/ledger/advice?by=job":            {"ada", 400, "unknown parameter", ""},
		"/ledger?to=2020-01-01":            {"", 403, "permission denied", ""},
	} {
		w := b.do("GET", "/api/v1/gpu"+path, "", "X-Nomad-Token", tc.token)
		text := w.Body.String()
		if w.Code != tc.status || !strings.Contains(text, tc.has) || tc.hasNot != "" && strings.Contains(text, tc.hasNot) {
			t.Errorf("%s: %d %s\nwant %d, %q, without %q", path, w.Code, text, tc.status, tc.has, tc.hasNot)
		}
	}
}

func TestTheTimeOfALedgerIsRead(t *testing.T) {
	s := &shelf{}
	b := newBench(t, func(c *Config) { c.Books = s })
	now := viewtest.Now.UTC()
	this := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for query, want := range map[string][2]time.Time{
		"":                               {now.Add(-defaultSpan), now},
		"month=2025-10":                  {time.Date(2025, 10, 1, 0, 0, 0, 0, time.UTC), time.Date(2025, 11, 1, 0, 0, 0, 0, time.UTC)},
		"month=" + now.Format("2006-01"): {this, now},
		"from=2025-10-01&to=2025-10-02T12:00:00%2B02:00": {time.Date(2025, 10, 1, 0, 0, 0, 0, time.UTC), time.Date(2025, 10, 2, 10, 0, 0, 0, time.UTC)},
	} {
		if w := b.do("GET", "/api/v1/gpu/ledger?"+query, ""); w.Code != http.StatusOK || !s.from.Equal(want[0]) || !s.to.Equal(want[1]) {
			t.Errorf("%q: %d, %s to %s, want %s", query, w.Code, s.from, s.to, want)
		}
	}
}

func TestNoLedgerSaysHowToHaveOne(t *testing.T) {
	b := newBench(t, nil)
	for _, path := range []string{"/api/v1/gpu/ledger", "/api/v1/gpu/ledger/advice"} {
		w := b.do("GET", path, "")
		var f Failure
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != http.StatusNotFound || !strings.Contains(f.Error, "ledger { path = ") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	broken := newBench(t, func(c *Config) { c.Books = &shelf{fails: errors.New("disk of " + view.Hidden)} })
	if w := broken.do("GET", "/api/v1/gpu/ledger", ""); w.Code != http.StatusInternalServerError {
		t.Errorf("a ledger that cannot be read: %d %s", w.Code, w.Body)
	}
}

// muted lets everybody read, and Nomad does not say of which namespaces.
type muted struct {
	gate
	asked map[string]int
}

func (m muted) MayReadNamespace(_ context.Context, _, namespace string) error {
	m.asked[namespace]++
	return ErrNoAnswer
}

// Where Nomad does not say what the caller may see, nothing is shown, and it is not asked again
// and again; a ledger that is away says so, and is no internal error.
func TestALedgerThatCannotBeShown(t *testing.T) {
	m := muted{asked: map[string]int{}}
	b := newBench(t, func(c *Config) { c.Books, c.Gate = &shelf{}, m })
	for _, path := range []string{"/ledger?by=job", "/ledger/advice"} {
		if w := b.do("GET", "/api/v1/gpu"+path, ""); w.Code != http.StatusBadGateway || strings.Contains(w.Body.String(), "research") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if len(m.asked) != 1 || m.asked["research"] != 2 {
		t.Errorf("asked about %v, want the first namespace of each", m.asked)
	}
	away := newBench(t, func(c *Config) { c.Books = &shelf{fails: fmt.Errorf("read the ledger: %w", ErrLedgerAway)} })
	for _, path := range []string{"/ledger", "/ledger/advice"} {
		if w := away.do("GET", "/api/v1/gpu"+path, ""); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" || !strings.Contains(w.Body.String(), "decisions go on") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// Nomad is asked once about each namespace, whatever is entered of it.
func TestEachNamespaceIsAskedAboutOnce(t *testing.T) {
	m := counting{asked: map[string]int{}}
	b := newBench(t, func(c *Config) { c.Books, c.Gate = twice{&shelf{}}, m })
	if w := b.do("GET", "/api/v1/gpu/ledger?by=namespace", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"namespace":"research","entries":2`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if len(m.asked) != 2 || m.asked["research"] != 1 || m.asked["serving"] != 1 {
		t.Errorf("asked about %v", m.asked)
	}
}

type counting struct {
	gate
	asked map[string]int
}

func (c counting) MayReadNamespace(_ context.Context, _, namespace string) error {
	c.asked[namespace]++
	return nil
}

// twice is a shelf with all entries twice.
type twice struct{ *shelf }

func (d twice) Entries(ctx context.Context, from, to time.Time, each func(*ledger.Entry)) error {
	return errors.Join(d.shelf.Entries(ctx, from, to, each), d.shelf.Entries(ctx, from, to, each))
}

// A table is a file that no browser runs, opens or keeps; JSON is the default.
func TestTablesAreFiles(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Books = &shelf{} })
	w := b.do("GET", "/api/v1/gpu/ledger?by=job&format=csv", "")
	for name, want := range map[string]string{
		"Content-Type": "text/csv; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
		"Content-Disposition": `attachment; filename="gpus-by-job.csv"`,
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, format := range []string{"", "json"} {
		if w := b.do("GET", "/api/v1/gpu/ledger?format="+format, ""); w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", format, w.Code, w.Body)
		}
	}
}

// A time ends when it ends, or now; one of no length is none.
func TestTheBoundsOfALedgersTime(t *testing.T) {
	s := &shelf{}
	b := newBench(t, func(c *Config) { c.Books = s })
	now := viewtest.Now.UTC().Format(time.RFC3339)
	for query, want := range map[string]int{
		"from=2025-10-01&to=2025-10-01": 400, "from=2025-10-01&to=2025-10-01T00:00:01Z": 200, "from=2025-10-02&to=2025-10-01": 400,
		"from=" + now: 400, "to=2200-01-01": 200, "from=2025-10-01&month=2025-10": 400, "to=&from=&month=": 200,
		"month=2025-13": 400, "from=2025-10-01T12:00": 400, "to=2025-02-30": 400,
	} {
		if w := b.do("GET", "/api/v1/gpu/ledger?"+query, ""); w.Code != want {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	for range 20 { // of two mistakes the same is told each time
		if w := b.do("GET", "/api/v1/gpu/ledger?from=x&to=y", ""); !strings.Contains(w.Body.String(), `from: \"x\"`) {
			t.Fatalf("two mistakes: %d %s", w.Code, w.Body)
		}
	}
	b.do("GET", "/api/v1/gpu/ledger?to=2200-01-01", "")
	if !s.to.Equal(viewtest.Now) || !s.from.Equal(viewtest.Now.Add(-defaultSpan)) {
		t.Errorf("it tells of %s to %s", s.from, s.to)
	}
}
