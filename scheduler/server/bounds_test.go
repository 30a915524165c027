// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Limits that would let nothing through, or bound nothing, are mistakes.
func TestLimitsThatMakeNoSense(t *testing.T) {
	good := Limits{MaxBodyBytes: 1, DecideTimeout: 1}
	for name, row := range map[string]struct {
		change func(*Limits)
		want   string // empty: it is valid
	}{
		"the least":              {func(*Limits) {}, ""},
		"a rate with a burst":    {func(l *Limits) { l.JobsPerSecond, l.JobsBurst = 0.5, 1 }, ""},
		"no rate needs no burst": {func(l *Limits) { l.JobsBurst = 0 }, ""},
		"no body":                {func(l *Limits) { l.MaxBodyBytes = 0 }, "0 bytes"},
		"a rate without a burst": {func(l *Limits) { l.JobsPerSecond = 0.5 }, "burst of at least 1"},
		"a rate below none":      {func(l *Limits) { l.JobsPerSecond, l.JobsBurst = -1, 1 }, "-1 jobs per second"},
		"no time for a decision": {func(l *Limits) { l.DecideTimeout = 0 }, "0s on decisions"},
		"less than none for one": {func(l *Limits) { l.DecideTimeout = -time.Second }, "-1s on decisions"},
	} {
		l := good
		row.change(&l)
		if err := l.validate(); (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each address has a rate of its own, whatever port it comes from; only what submits work counts,
// and each kind of client is told in its own form.
func TestTheRateOfSubmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{JobsPerSecond: 2, JobsBurst: 1})
		reached := 0
		h := l.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
		for i, step := range []struct {
			after        time.Duration
			method, path string
			from         string
			want         int
			isJSON       bool
		}{
			{0, "PUT", "/v1/jobs", "192.0.2.1:1", 200, false},
			{0, "PUT", "/v1/jobs", "192.0.2.1:2", 429, false},
			{0, "POST", "/api/v1/gpu/allocate", "192.0.2.1:3", 429, true},
			{0, "GET", "/v1/jobs", "192.0.2.1:1", 200, false},
			{0, "GET", "/api/v1/gpu/status", "192.0.2.1:1", 200, false},
			{0, "POST", "/v1/job/a/evaluate", "192.0.2.1:1", 200, false},
			{0, "POST", "/v1/job/a/scale", "192.0.2.1:1", 429, false},
			{0, "POST", "/v1/jobs", "192.0.2.2:1", 200, false},
			{0, "POST", "/v1/jobs", "a socket", 200, false},
			{0, "POST", "/v1/jobs", "a socket", 429, false},
			{499 * time.Millisecond, "PUT", "/v1/jobs", "192.0.2.1:1", 429, false},
			{time.Millisecond, "PUT", "/v1/jobs", "192.0.2.1:1", 200, false},
		} {
			time.Sleep(step.after)
			w, r := httptest.NewRecorder(), httptest.NewRequest(step.method, step.path, nil)
			r.RemoteAddr = step.from
			before := reached
			h.ServeHTTP(w, r)
			if w.Code != step.want || (reached == before) != (step.want == 429) {
				t.Errorf("step %d: %d", i, w.Code)
			}
			if step.want == 429 && (w.Header().Get("Retry-After") != "1" || (w.Header().Get("Content-Type") == "application/json") != step.isJSON || json.Valid(w.Body.Bytes()) != step.isJSON || !strings.Contains(w.Body.String(), "more than 2 job submissions")) {
				t.Errorf("step %d: %v %s", i, w.Header(), w.Body)
			}
		}
		off := newLimiter(Limits{})
		for range 3 {
			w := httptest.NewRecorder()
			off.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, httptest.NewRequest("PUT", "/v1/jobs", nil))
			if w.Code != 200 {
				t.Errorf("without a rate: %d", w.Code)
			}
		}
	})
}

// Of too many addresses those are forgotten first that have not asked for some time.
func TestFewAddressesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{JobsPerSecond: 1, JobsBurst: 1})
		ask := func(from, to int) {
			for i := from; i < to; i++ {
				l.allow(fmt.Sprint("host-", i))
			}
		}
		ask(0, maxClients-1)
		time.Sleep(time.Second)
		ask(maxClients-1, maxClients)
		if len(l.clients) != maxClients {
			t.Fatalf("%d are remembered", len(l.clients))
		}
		ask(maxClients, maxClients+1)
		if len(l.clients) != 2 || l.allow(fmt.Sprint("host-", maxClients-1)) {
			t.Errorf("%d are remembered, want the two that asked within a second", len(l.clients))
		}
		ask(0, maxClients-2)
		if len(l.clients) != maxClients {
			t.Fatalf("%d are remembered", len(l.clients))
		}
		if ask(maxClients+1, maxClients+2); len(l.clients) != 1 {
			t.Errorf("%d are remembered, where all have just asked", len(l.clients))
		}
	})
}

// Whose a token is Nomad is asked, and believed for some minutes; tokens are not kept, and what
// Nomad does not know is nameless.
func TestWhoseATokenIs(t *testing.T) {
	asked := 0
	reply, fails := answer{http.StatusOK, []byte(`{"AccessorID":"a-1","Name":"ada","SecretID":"s"}`)}, error(nil)
	c := newCallers(func(_ context.Context, path, token string) (answer, error) {
		if asked++; path != "/v1/acl/token/self" || token == "" {
			t.Errorf("asked %s with %q", path, token)
		}
		return reply, fails
	})
	now := time.Unix(1000, 0)
	ada := caller{Accessor: "a-1", Name: "ada"}
	for i, step := range []struct {
		token string
		after time.Duration
		want  caller
		asked int
	}{{"", 0, caller{}, 0}, {"s", 0, ada, 1}, {"s", callerTTL - 1, ada, 1}, {"t", 0, ada, 2}, {"s", callerTTL, ada, 3}} {
		if got := c.who(t.Context(), step.token, now.Add(step.after)); got != step.want || asked != step.asked {
			t.Errorf("step %d: %+v after %d questions", i, got, asked)
		}
	}
	for name, row := range map[string]struct {
		reply answer
		fails error
	}{"unknown": {answer{http.StatusForbidden, reply.body}, nil}, "no answer": {reply, errors.New("no")}, "no JSON": {answer{http.StatusOK, []byte("{")}, nil}} {
		reply, fails = row.reply, row.fails
		if got := c.who(t.Context(), name, now); got != (caller{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	reply, fails = answer{http.StatusOK, []byte(`{}`)}, nil
	for i := len(c.know); i < maxCallers; i++ {
		c.who(t.Context(), fmt.Sprint("token-", i), now)
	}
	if len(c.know) != maxCallers {
		t.Fatalf("%d are remembered", len(c.know))
	}
	if c.who(t.Context(), "one more", now); len(c.know) != 1 {
		t.Errorf("%d are remembered", len(c.know))
	}
}

// What is scaled is decided about where it gets more allocs: with all of its gang where none of
// it ran.
func TestWhatAScalingAsksFor(t *testing.T) {
	to := func(n int64) *int64 { return &n }
	group := func(name string, count int, gang bool) admit.Ask {
		return admit.Ask{Group: name, Count: count, Gang: gang, Tasks: []admit.TaskAsk{{Task: "t"}}}
	}
	for name, row := range map[string]struct {
		asks  []admit.Ask
		group string
		count *int64
		want  []string
	}{
		"more":                  {[]admit.Ask{group("g", 1, false), group("h", 1, false)}, "g", to(3), []string{"g 3"}},
		"as many":               {[]admit.Ask{group("g", 3, false)}, "g", to(3), nil},
		"fewer":                 {[]admit.Ask{group("g", 3, false)}, "g", to(2), nil},
		"one without GPUs":      {[]admit.Ask{group("g", 1, false)}, "plain", to(9), nil},
		"no count":              {[]admit.Ask{group("g", 1, false)}, "g", nil, nil},
		"a gang from zero":      {[]admit.Ask{group("h", 2, true), group("g", 0, true), group("i", 1, false)}, "g", to(1), []string{"g 1", "h 2"}},
		"a gang that runs":      {[]admit.Ask{group("h", 2, true), group("g", 1, true)}, "g", to(2), []string{"g 2"}},
		"a group beside a gang": {[]admit.Ask{group("h", 2, true), group("g", 0, false)}, "g", to(2), []string{"g 2"}},
	} {
		asks, err := scaledTo(row.asks, row.group, row.count)
		var got []string
		for _, a := range asks {
			got = append(got, fmt.Sprint(a.Group, " ", a.Count))
		}
		if err != nil || strings.Join(got, ", ") != strings.Join(row.want, ", ") {
			t.Errorf("%s: %v, %v; want %v", name, got, err, row.want)
		}
	}
}

// A gang runs as far as a group of it is not held.
func TestWhetherOthersOfAGangRun(t *testing.T) {
	group := func(name string, count int, gang bool, was *admit.Earlier) admit.Ask {
		return admit.Ask{Group: name, Count: count, Gang: gang, Was: was}
	}
	g := group("g", 0, true, nil)
	for name, row := range map[string]struct {
		asks []admit.Ask
		want bool
	}{
		"alone":                  {[]admit.Ask{group("g", 3, true, nil)}, false},
		"another runs":           {[]admit.Ask{g, group("h", 1, true, &admit.Earlier{})}, true},
		"without a mark":         {[]admit.Ask{g, group("h", 1, true, nil)}, true},
		"another is held":        {[]admit.Ask{g, group("h", 1, true, &admit.Earlier{Hold: "room: so"})}, false},
		"another is at zero":     {[]admit.Ask{g, group("h", 0, true, nil)}, false},
		"another is no part":     {[]admit.Ask{g, group("h", 1, false, nil)}, false},
		"it is no part":          {[]admit.Ask{group("g", 0, false, nil), group("h", 1, true, nil)}, false},
		"the last of three runs": {[]admit.Ask{group("i", 0, true, nil), g, group("h", 1, true, nil)}, true},
	} {
		if got := othersRun(row.asks, "g"); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A dispatch cannot wait for quota or room, and goes on beside what has a higher priority.
func TestWhatADispatchCannotWaitFor(t *testing.T) {
	for kind, refused := range map[string]bool{view.WaitsForQuota: true, view.WaitsForRoom: true, view.WaitsForPriority: false, "": false} {
		decisions := []admit.Decision{{Group: "free"}, {Group: "g"}}
		if kind != "" {
			decisions[1].Hold = &admit.Hold{Kind: kind, Sentence: "so it is"}
		}
		err := heldRefusal(decisions)
		var refusal *admit.Refusal
		if errors.As(err, &refusal) != refused || refused && (refusal.Status != http.StatusConflict || !strings.Contains(refusal.Text, `"g"`) || !strings.Contains(refusal.Text, "so it is") || len(refusal.Details) == 0) {
			t.Errorf("%q: %v", kind, err)
		}
	}
}

// One version is found among all that Nomad keeps.
func TestAVersionIsFound(t *testing.T) {
	const all = `{"Versions":[{"Version":2,"ID":"c"},"odd",{"Version":1,"ID":"b"},{"Version":0,"ID":"a"}]}`
	for version, want := range map[int64]string{0: "a", 1: "b", 2: "c", 3: ""} {
		if got := string(jobVersion([]byte(all), version)); strings.Contains(got, `"ID":"`+want+`"`) != (want != "") || want == "" && got != "" {
			t.Errorf("version %d: %s", version, got)
		}
	}
	if got := jobVersion([]byte("{"), 0); got != nil {
		t.Errorf("of no answer: %s", got)
	}
}

// An error that is no refusal is the service's fault: late ones say so.
func TestRefusalsOfErrors(t *testing.T) {
	refusal := &admit.Refusal{Status: http.StatusTeapot, Text: "x"}
	if got := refusalOf(fmt.Errorf("y: %w", refusal)); got != refusal {
		t.Errorf("got %+v", got)
	}
	for _, row := range []struct {
		err  error
		says string
	}{{fmt.Errorf("y: %w", context.DeadlineExceeded), "in time"}, {errors.New("odd"), "odd"}} {
		if got := refusalOf(row.err); got.Status != http.StatusServiceUnavailable || !strings.Contains(got.Text, row.says) {
			t.Errorf("%v: %+v", row.err, got)
		}
	}
}

// The index that a job was changed at last is read, and 0 where there is none.
func TestModifyIndexes(t *testing.T) {
	for text, want := range map[string]uint64{`{"JobModifyIndex":7}`: 7, `{}`: 0, `{`: 0, "": 0, `{"JobModifyIndex":"x"}`: 0} {
		if got := modifyIndex([]byte(text)); got != want {
			t.Errorf("%s: %d", text, got)
		}
	}
}
