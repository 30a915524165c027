// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// lists is a Nomad with these objects. Like Nomad it pages its allocs in the order
// of their IDs, and its index goes on while a reader turns the pages.
type lists struct {
	mu     sync.Mutex
	nodes  map[string]uint64 // modify index by ID
	jobs   map[JobKey]uint64
	allocs map[string]uint64
	evals  []eventEval
	ended  []api.AllocationListStub
	stats  map[string]string // by node
	fails  map[string]int    // status by path
	asked  map[string]int    // requests by path
	index  uint64

	firstPage uint64 // of the allocs: the index
}

func (l *lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[r.URL.Path]++
	l.index++
	w.Header().Set("X-Nomad-Index", strconv.FormatUint(l.index, 10))
	w.Header().Set("X-Nomad-LastContact", "0") // without it the client sees no next page
	if status := l.fails[r.URL.Path]; status != 0 {
		http.Error(w, "it fails", status)
		return
	}
	q := r.URL.Query()
	id := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	switch {
	case r.URL.Path == "/v1/nodes":
		l.answer(w, l.nodeStubs())
	case strings.HasPrefix(r.URL.Path, "/v1/node/"):
		l.answer(w, map[string]any{"ID": id, "Name": id, "ModifyIndex": l.nodes[id]})
	case r.URL.Path == "/v1/jobs":
		l.answer(w, l.jobStubs())
	case strings.HasPrefix(r.URL.Path, "/v1/job/"):
		key := JobKey{q.Get("namespace"), id}
		if l.jobs[key] == 0 {
			http.NotFound(w, r)
			return
		}
		l.answer(w, map[string]any{"ID": id, "Namespace": key.Namespace, "JobModifyIndex": l.jobs[key]})
	case r.URL.Path == "/v1/allocations" && q.Get("filter") == endedAlone && q.Get("resources") == "true" && q.Get("task_states") == "true":
		l.asked[r.URL.Path]--
		l.asked["ended"]++
		l.answer(w, l.ended)
	case r.URL.Path == "/v1/allocations" && q.Get("filter") == occupying && q.Get("resources") == "true" && q.Get("task_states") == "false":
		l.page(w, q.Get("next_token"), q.Get("per_page"))
	case r.URL.Path == "/v1/evaluations" && q.Get("filter") == `Status == "blocked"`:
		l.answer(w, l.evals)
	case r.URL.Path == "/v1/client/stats":
		fmt.Fprint(w, cmp.Or(l.stats[q.Get("node_id")], "null"))
	default:
		http.NotFound(w, r)
	}
}

func (l *lists) answer(w http.ResponseWriter, value any) { _ = json.NewEncoder(w).Encode(value) }

func (l *lists) nodeStubs() (list []map[string]any) {
	for _, id := range slices.Sorted(maps.Keys(l.nodes)) {
		list = append(list, map[string]any{"ID": id, "ModifyIndex": l.nodes[id]})
	}
	return list
}

func (l *lists) jobStubs() (list []map[string]any) {
	for key, index := range l.jobs {
		list = append(list, map[string]any{"ID": key.ID, "Namespace": key.Namespace, "JobModifyIndex": index})
	}
	return list
}

func (l *lists) page(w http.ResponseWriter, from, per string) {
	if from == "" {
		l.firstPage = l.index
	}
	most, _ := strconv.Atoi(per)
	page := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(l.allocs)) {
		if id < from {
			continue
		}
		if len(page) == most {
			w.Header().Set("X-Nomad-NextToken", id)
			break
		}
		page = append(page, map[string]any{"ID": id, "ModifyIndex": l.allocs[id], "ClientStatus": "running", "DesiredStatus": "run"})
	}
	l.answer(w, page)
}

// set changes what Nomad has, and forgets what was asked.
func (l *lists) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.asked = map[string]int{}
}

// fullNomad has two of everything, and a page and a half of allocs.
func fullNomad(t *testing.T) (*lists, *api.Client) {
	t.Helper()
	l := &lists{
		nodes: map[string]uint64{"n1": 5, "n2": 6}, jobs: map[JobKey]uint64{{"a", "j"}: 7, {"b", "j"}: 8},
		allocs: map[string]uint64{}, asked: map[string]int{}, index: 100,
		evals: []eventEval{{ID: "e1", Namespace: "a", JobID: "j", Status: "blocked", ModifyIndex: 9}, {ID: "e2", Namespace: "b", JobID: "j", Status: "blocked", ModifyIndex: 9}},
	}
	for i := range listPage * 3 / 2 {
		l.allocs[fmt.Sprintf("alloc-%05d", i)] = 10
	}
	s := httptest.NewServer(l)
	t.Cleanup(s.Close)
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return l, client
}

// kinds counts changes by what they are about.
func kinds(changes []Change) map[string]int {
	found := map[string]int{}
	for _, c := range changes {
		for kind, is := range map[string]bool{
			"node": c.Node != nil, "node gone": c.NodeGone != "", "alloc": c.Alloc != nil, "alloc gone": c.AllocGone != "",
			"job": c.Job != nil, "job gone": c.JobGone != nil, "blocked": c.Blocked != nil, "unblocked": c.Unblocked != nil, "past": c.Past != nil,
		} {
			if is {
				found[kind]++
			}
		}
	}
	return found
}

// gathering is a sink that has all changes, and the last index.
type gathering struct {
	changes []Change
	index   uint64
}

func (g *gathering) Apply(changes []Change, index uint64) {
	g.changes, g.index = append(g.changes, changes...), index
}

// relist reads all lists into a mirror.
func relist(ctx context.Context, c *Client, m *Mirror) ([]Change, listed, error) {
	g := &gathering{}
	w := &Watcher{Client: c, Mirror: m, Sink: g, Heard: func() {}}
	err := w.relist(ctx, nil, nil)
	return g.changes, m.at, err
}

// What ended before is listed once, with when it ended.
func TestWhatEndedIsListed(t *testing.T) {
	nomad, client := fullNomad(t)
	end := time.Unix(5000, 0).UTC()
	nomad.ended = []api.AllocationListStub{
		{ID: "by its tasks", ClientStatus: "complete", DesiredStatus: "run", CreateTime: 1, ModifyTime: 9000e9,
			TaskStates: map[string]*api.TaskState{"a": {FinishedAt: end}, "b": {FinishedAt: end.Add(-time.Minute)}}},
		{ID: "by its last change", ClientStatus: "complete", DesiredStatus: "run", CreateTime: 1, ModifyTime: 5000e9},
	}
	c, m := NewClient(client), NewMirror(Hardware{})
	changes, _, err := relist(t.Context(), c, m)
	if err != nil || kinds(changes)["past"] != 2 {
		t.Fatalf("got %v, %v", kinds(changes), err)
	}
	for _, one := range changes {
		if one.Past != nil && !one.Past.Ended.Equal(end) {
			t.Errorf("%s ended at %v, want %v", one.Past.ID, one.Past.Ended, end)
		}
	}
	if changes, _, err = relist(t.Context(), c, m); err != nil || kinds(changes)["past"] != 0 || nomad.asked["ended"] != 1 {
		t.Errorf("it was listed again: %v, %v", kinds(changes), err)
	}
}

// TestEverythingIsListed, each thing once, and what did not change is not read again.
func TestEverythingIsListed(t *testing.T) {
	nomad, client := fullNomad(t)
	c, m := NewClient(client), NewMirror(Hardware{})
	changes, at, err := relist(t.Context(), c, m)
	if want := (map[string]int{"node": 2, "job": 2, "alloc": listPage * 3 / 2, "blocked": 2}); err != nil || !maps.Equal(kinds(changes), want) {
		t.Fatalf("got %v, want %v, %v", kinds(changes), want, err)
	}
	// What changes while the pages are turned comes as an event with a later index.
	if nomad.asked["/v1/allocations"] != 2 || at.allocs != nomad.firstPage {
		t.Errorf("%d pages were read, the allocs are as of %d, and the first page of %d", nomad.asked["/v1/allocations"], at.allocs, nomad.firstPage)
	}

	nomad.set(func() {})
	changes, _, err = relist(t.Context(), c, m)
	if err != nil || !maps.Equal(kinds(changes), map[string]int{"blocked": 2}) { // these cost nothing
		t.Errorf("nothing changed, and got %v, %v", kinds(changes), err)
	}
	for path := range nomad.asked {
		if strings.HasPrefix(path, "/v1/node/") || strings.HasPrefix(path, "/v1/job/") {
			t.Errorf("%s was read again", path)
		}
	}

	nomad.set(func() { nomad.nodes["n1"], nomad.jobs[JobKey{"a", "j"}] = 20, 21 })
	changes, _, err = relist(t.Context(), c, m)
	if want := (map[string]int{"node": 1, "job": 1, "blocked": 2}); err != nil || !maps.Equal(kinds(changes), want) {
		t.Errorf("a node and a job changed, and got %v, %v", kinds(changes), err)
	}

	nomad.set(func() {
		delete(nomad.nodes, "n1")
		delete(nomad.jobs, JobKey{"a", "j"})
		delete(nomad.allocs, "alloc-00000")
		nomad.evals = nomad.evals[1:]
	})
	changes, _, err = relist(t.Context(), c, m)
	if want := (map[string]int{"node gone": 1, "job gone": 1, "alloc gone": 1, "unblocked": 1, "blocked": 1}); err != nil || !maps.Equal(kinds(changes), want) {
		t.Errorf("one of each is gone, and got %v, %v", kinds(changes), err)
	}
	changes, _, err = relist(t.Context(), c, m)
	if err != nil || !maps.Equal(kinds(changes), map[string]int{"blocked": 1}) {
		t.Errorf("then %v, %v", kinds(changes), err)
	}
}

func TestAListThatFailsIsAnError(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/nodes": "list nodes", "/v1/node/n2": "list nodes", "/v1/jobs": "list jobs", "/v1/job/j": "list jobs",
		"/v1/allocations": "list allocations", "/v1/evaluations": "list evaluations",
	} {
		nomad, client := fullNomad(t)
		nomad.fails = map[string]int{path: http.StatusInternalServerError}
		if changes, _, err := relist(t.Context(), NewClient(client), NewMirror(Hardware{})); err == nil || !strings.HasPrefix(err.Error(), want) || kinds(changes)[strings.TrimPrefix(want, "list ")] != 0 {
			t.Errorf("%s fails: %d changes, %v", path, len(changes), err)
		}
	}
}

// What is deleted between the list and its reading is left to the next list.
func TestWhatIsGoneMeanwhileIsLeftOut(t *testing.T) {
	for path, want := range map[string]map[string]int{"/v1/node/n2": {"node": 1, "job": 2}, "/v1/job/j": {"node": 2}} {
		nomad, client := fullNomad(t)
		nomad.fails = map[string]int{path: http.StatusNotFound}
		changes, _, err := relist(t.Context(), NewClient(client), NewMirror(Hardware{}))
		got := kinds(changes)
		if err != nil || got["node"] != want["node"] || got["job"] != want["job"] {
			t.Errorf("%s is gone: %v, %v", path, got, err)
		}
	}
}

func TestMeasureAll(t *testing.T) {
	nomad, client := fullNomad(t)
	nomad.stats = map[string]string{
		"n1": `{"DeviceStats":[{"InstanceStats":{"GPU-a::0":{"Timestamp":"2026-01-01T00:00:00Z","Stats":{"Attributes":{"GPU utilization":{"IntNumeratorVal":40},"Temperature":{"FloatNumeratorVal":60.4}}}},"not an instance::x":null}}]}`,
		"n2": `no JSON`,
	}
	var mu sync.Mutex
	got := map[string]Measurements{}
	NewClient(client).MeasureAll(t.Context(), []string{"n1", "n2"}, func(id string, m Measurements) {
		mu.Lock()
		defer mu.Unlock()
		got[id] = m
	})
	if v := got["n1"].GPUs["GPU-a"]; len(got) != 1 || v.Milli != 400 || v.TemperatureC != 60 || v.PowerW != -1 {
		t.Errorf("measured %+v", got)
	}
}

// TestActorRevises reads a job as the body that would leave it as it is, and tells a
// job that was changed meanwhile from any other trouble.
func TestActorRevises(t *testing.T) {
	var failure string
	status := http.StatusInternalServerError
	var registered string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && failure != "":
			http.Error(w, failure, status)
		case r.Method == http.MethodPut:
			var body json.RawMessage
			_ = json.NewDecoder(r.Body).Decode(&body)
			registered = string(body)
			fmt.Fprint(w, "{}")
		case r.URL.Query().Get("namespace") != "n":
			http.Error(w, "another namespace", http.StatusNotFound)
		case r.URL.EscapedPath() == "/v1/job/a%2Fb":
			fmt.Fprint(w, `{"ID":"a/b","JobModifyIndex":12,"Version":3,"Odd":true}`)
		case r.URL.EscapedPath() == "/v1/job/a%2Fb/submission" && r.URL.Query().Get("version") == "3":
			fmt.Fprint(w, `{"Source":"job {}"}`)
		case r.URL.EscapedPath() == "/v1/job/plain":
			fmt.Fprint(w, `{"ID":"plain","JobModifyIndex":1}`)
		case r.URL.EscapedPath() == "/v1/job/tagged":
			fmt.Fprint(w, `{"ID":"tagged","JobModifyIndex":1,"VersionTag":{"Name":"golden"}}`)
		case r.URL.EscapedPath() == "/v1/job/untagged":
			fmt.Fprint(w, `{"JobModifyIndex":1,"ID":"untagged","VersionTag":null}`)
		case r.URL.EscapedPath() == "/v1/job/odd":
			fmt.Fprint(w, `{"JobModifyIndex":"twelve"}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	a := NewActor(client)
	for id, want := range map[string]string{
		"a/b":   `{"Job":{"ID":"a/b","JobModifyIndex":12,"Version":3,"Odd":true},"EnforceIndex":true,"JobModifyIndex":12,"Submission":{"Source":"job {}"}}`,
		"plain": `{"Job":{"ID":"plain","JobModifyIndex":1},"EnforceIndex":true,"JobModifyIndex":1}`,
		// A tag is of the version that its author gave it to.
		"tagged":   `{"Job":{"ID":"tagged","JobModifyIndex":1},"EnforceIndex":true,"JobModifyIndex":1}`,
		"untagged": `{"Job":{"JobModifyIndex":1,"ID":"untagged","VersionTag":null},"EnforceIndex":true,"JobModifyIndex":1}`,
		"odd":      "", "none": "",
	} {
		body, err := a.Read(t.Context(), JobKey{"n", id})
		if string(body) != want || (err == nil) != (want != "") {
			t.Errorf("job %s reads as %s, %v", id, body, err)
		}
	}
	key := JobKey{"n", "plain"}
	if err := a.Register(t.Context(), key, []byte(`{"Job":{}}`)); err != nil || registered != `{"Job":{}}` {
		t.Errorf("registered %s, %v", registered, err)
	}
	for text, row := range map[string]struct {
		status   int
		conflict bool
	}{
		"Enforcing job modify index 7: job exists with conflicting job modify index: 9": {500, true},
		"conflict":                          {409, true},
		"no leader":                         {500, false},
		"Enforcing job modify index is odd": {400, false},
	} {
		failure, status = text, row.status
		if err := a.Register(t.Context(), key, []byte(`{}`)); err == nil || errors.Is(err, ErrConflict) != row.conflict {
			t.Errorf("%d %q is %v", row.status, text, err)
		}
		if err := a.Stop(t.Context(), "alloc", false); err == nil {
			t.Errorf("an alloc was stopped with %d", row.status)
		}
	}
	failure = ""
	if err := a.Stop(t.Context(), "alloc", false); err != nil {
		t.Error(err)
	}
	if _, _, err := a.Allocs(t.Context(), "n1"); err == nil {
		t.Error("a list that fails is one without allocs")
	}
}

// TestWhoLostTheLockKnows: a leader whose lock is another's now, or whose time is up,
// does not name itself any more.
func TestWhoLostTheLockKnows(t *testing.T) {
	nomad := &lockServer{}
	s := httptest.NewServer(nomad)
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLock(client, "default", "p", "http://one", 15*time.Second)
	if err := l.step(t.Context()); err != nil || l.Leader() != "http://one" || l.Secret() == "" {
		t.Fatalf("it knows %q, %v", l.Leader(), err)
	}
	nomad.set(func() { nomad.down = true })
	l.mu.Lock()
	l.until = time.Now().Add(-time.Second)
	l.mu.Unlock()
	if err := l.step(t.Context()); err == nil || l.Leader() != "" || l.Secret() != "" {
		t.Errorf("its time is up, and it names %q, %v", l.Leader(), err)
	}
	nomad.set(func() { nomad.down, nomad.holder = false, "" })
	if err := l.step(t.Context()); err != nil || !l.Leading() {
		t.Fatalf("it does not lead again: %v", err)
	}
	nomad.set(func() {
		nomad.holder, nomad.items = "of two", map[string]string{"address": "http://two", "secret": "s2"}
	})
	if err := l.step(t.Context()); err != nil || l.Leading() || l.Leader() != "http://two" || l.Secret() != "s2" {
		t.Errorf("another holds the lock: it leads %v and knows %q, %v", l.Leading(), l.Leader(), err)
	}
}

// TestAttributesOfADevice: every kind of value that a fingerprint may have is seen by
// constraints.
func TestAttributesOfADevice(t *testing.T) {
	yes, half := true, 0.5
	d := deviceGroup(&api.NodeDeviceResource{Attributes: map[string]*api.Attribute{
		"memory": number(15, "GiB"), "ratio": {FloatVal: &half, Unit: "W"}, "ready": {BoolVal: &yes}, "model": word("T4"), "nothing": nil, "empty": {},
	}})
	want := map[string]constraint.Value{"memory": constraint.Int(15, "GiB"), "ratio": constraint.Float(0.5, "W"), "ready": constraint.Bool(true), "model": constraint.Text("T4")}
	if !maps.Equal(d.Attributes, want) {
		t.Errorf("got %+v, want %+v", d.Attributes, want)
	}
}

// TestANodeIsReadAsNomadHasIt: what reads nodes is not what Nomad's own package does, and
// makes the same of them.
func TestANodeIsReadAsNomadHasIt(t *testing.T) {
	plain, draining, odd := fullNode(1), fullNode(2), fullNode(3)
	plain.NodeClass, plain.HTTPAddr = "large", "10.0.0.1:4646"
	plain.ReservedResources = &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 1000}, Memory: api.NodeReservedMemoryResources{MemoryMB: 2048}}
	plain.NodeResources.Devices[3].Instances[7].Healthy, plain.NodeResources.Devices[3].Instances[7].HealthDescription = false, "xid 79"
	draining.DrainStrategy, draining.SchedulingEligibility = &api.DrainStrategy{DrainSpec: api.DrainSpec{Deadline: time.Hour}}, "ineligible"
	yes, half := true, 0.5
	odd.NodeResources.Devices[0].Attributes["on"], odd.NodeResources.Devices[0].Attributes["part"], odd.NodeResources.Devices[0].Attributes["none"] = &api.Attribute{BoolVal: &yes}, &api.Attribute{FloatVal: &half, Unit: "GHz"}, nil
	odd.Attributes["driver.x"], odd.Meta, odd.Status = "\u2028 \x00 \"é\"", nil, "down"
	none := &api.Node{ID: "none", Name: "without resources"}
	for _, want := range []*api.Node{plain, draining, odd, none} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte(`"ID":"`), []byte(`"FieldOfALaterNomad":{"x":[1,2]},"ID":"`), 1)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
		t.Cleanup(s.Close)
		client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewClient(client).readNode(t.Context(), want.ID)
		if err != nil {
			t.Fatal(err)
		}
		theirs, _, err := client.Nodes().Info(want.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := NewNode(got, Hardware{}), NewNode(theirs, Hardware{}); !reflect.DeepEqual(a, b) {
			t.Errorf("%s:\n%+v\nwant\n%+v", want.Name, a, b)
		}
	}
}

// TestANodeThatCannotBeReadIsAnError, which names it.
func TestANodeThatCannotBeReadIsAnError(t *testing.T) {
	for _, text := range []string{`{"ID": 7}`, `{"ID": "x"`, `<html>`, ``} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		t.Cleanup(s.Close)
		client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewClient(client).readNode(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), `decode node "n1"`) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// Of two blocked evaluations of a job that are listed, either may be gone the next time.
func TestOneOfTwoListedEvaluationsIsGone(t *testing.T) {
	both := []eventEval{{ID: "e0", Namespace: "a", JobID: "j", Status: "blocked", ModifyIndex: 8}, {ID: "e1", Namespace: "a", JobID: "j", Status: "blocked", ModifyIndex: 9}}
	for left, evals := range map[string][]eventEval{"e0": both[:1], "e1": both[1:], "": {}} {
		nomad, client := fullNomad(t)
		c, m := NewClient(client), NewMirror(Hardware{})
		nomad.set(func() { nomad.evals = both })
		if _, _, err := relist(t.Context(), c, m); err != nil || m.blocked[JobKey{"a", "j"}].EvalID != "e1" {
			t.Fatalf("it waits with %+v, %v", m.blocked, err)
		}
		nomad.set(func() { nomad.evals, nomad.index = evals, nomad.index+1 })
		_, _, err := relist(t.Context(), c, m)
		if b := m.blocked[JobKey{"a", "j"}]; err != nil || (b == nil) != (left == "") || b != nil && b.EvalID != left || len(m.evals[JobKey{"a", "j"}]) != len(evals) {
			t.Errorf("where %q is left, it waits with %+v, %v", left, b, err)
		}
	}
}
