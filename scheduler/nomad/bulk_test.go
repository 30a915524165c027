// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// crowd is a Nomad with forty nodes and jobs, that answers nothing of a single one until its gate
// is open. It counts how many of each are asked for at once.
func crowd(gate chan struct{}) (answer func(r *http.Request) (int, any), most func() map[string]int) {
	var mu sync.Mutex
	now, peak := map[string]int{}, map[string]int{}
	nodes, jobs := make([]api.NodeListStub, 40), make([]api.JobListStub, 40)
	for i := range nodes {
		id := fmt.Sprint(i)
		nodes[i], jobs[i] = api.NodeListStub{ID: id, ModifyIndex: 5}, api.JobListStub{ID: id, Namespace: "n", JobModifyIndex: 5}
	}
	answer = func(r *http.Request) (int, any) {
		kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
		switch kind {
		case "nodes":
			return http.StatusOK, nodes
		case "jobs":
			return http.StatusOK, jobs
		case "node", "job", "client":
			mu.Lock()
			now[kind]++
			peak[kind] = max(peak[kind], now[kind])
			mu.Unlock()
			<-gate
			mu.Lock()
			now[kind]--
			mu.Unlock()
			return http.StatusOK, map[string]any{"ID": r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], "Namespace": "n"}
		}
		return http.StatusOK, "[]"
	}
	return answer, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(peak)
	}
}

// A large cluster is read a few at a time: Nomad's servers have other work too.
func TestSingleReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		answer, most := crowd(gate)
		m := &inMemory{answer: answer}
		c := NewClient(m.client(t))
		done := make(chan int)
		go func() {
			changes, _, err := relist(t.Context(), c, NewMirror(Hardware{}))
			if err != nil {
				t.Error(err)
			}
			done <- len(changes)
		}()
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint(i))
		}
		go func() {
			var mu sync.Mutex
			measured := 0
			c.MeasureAll(t.Context(), ids, func(string, Measurements) { mu.Lock(); defer mu.Unlock(); measured++ })
			done <- measured
		}()
		synctest.Wait()
		if got := most(); got["node"] != 16 || got["job"] != 16 || got["client"] != 16 {
			t.Errorf("at once are asked for %v", got)
		}
		close(gate)
		if got := []int{<-done, <-done}; got[0]+got[1] != 120 {
			t.Errorf("read and measured are %v", got)
		}
	})
}

// TestANodeThatHangsIsNotWaitedFor longer than ten seconds; the others are measured meanwhile.
func TestANodeThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &inMemory{answer: func(r *http.Request) (int, any) {
			if r.URL.Query().Get("node_id") == "hangs" {
				return hang(r)
			}
			return stocked(r)
		}}
		begun := time.Now()
		var got []string
		NewClient(m.client(t)).MeasureAll(t.Context(), []string{"hangs", "well"}, func(id string, _ Measurements) { got = append(got, id) })
		if took := time.Since(begun); took != 10*time.Second || !slices.Equal(got, []string{"well"}) {
			t.Errorf("measured %q in %s", got, took)
		}
		for _, r := range m.asked {
			if r.Context().Err() == nil {
				t.Error("a measurement that is over has a clock that goes on")
			}
		}
	})
}

// Of what ended 5,000 are read, however many there are.
func TestNotAllThatEndedIsRead(t *testing.T) {
	pages := 0
	m := &inMemory{answer: func(r *http.Request) (int, any) {
		pages++
		if r.URL.Query().Get("per_page") != "1000" || (pages > 1) != r.URL.Query().Has("next_token") {
			t.Errorf("page %d: asked %s", pages, r.URL)
		}
		page := make(paged, 1000)
		for i := range page {
			page[i] = api.AllocationListStub{ID: fmt.Sprint(pages, "-", i)}
		}
		return http.StatusOK, page
	}}
	if got := NewClient(m.client(t)).listEnded(t.Context(), func(page) {}); len(got) != 5000 || pages != 5 {
		t.Errorf("%d of them are read in %d pages", len(got), pages)
	}
}

// The first of a list counts as any other: what was the only one is gone, and is told of once.
func TestTheOnlyOneOfEachIsGone(t *testing.T) {
	there := true
	m := &inMemory{answer: func(r *http.Request) (int, any) {
		if !there {
			return http.StatusOK, "[]"
		}
		return stocked(r)
	}}
	c, mirror := NewClient(m.client(t)), NewMirror(Hardware{})
	if _, _, err := relist(t.Context(), c, mirror); err != nil {
		t.Fatal(err)
	}
	there = false
	for _, want := range []map[string]int{{"node gone": 1, "job gone": 1, "alloc gone": 2, "unblocked": 1}, {}} {
		changes, _, err := relist(t.Context(), c, mirror)
		if err != nil || !maps.Equal(kinds(changes), want) {
			t.Errorf("gone are %v, %v; want %v", kinds(changes), err, want)
		}
	}
	for _, id := range []string{"a", "b"} { // one of them alone, whichever comes first
		mirror.allocs, mirror.blocked = map[string]listedIn{id: {index: 1}}, map[JobKey]*Blocked{{"n", id}: {EvalID: id}}
		mirror.evals = map[JobKey]map[string]*eventEval{{"n", id}: {id: {ID: id}}}
		mirror.nodes, mirror.jobs = map[string]*Node{id: {}}, map[JobKey]uint64{{"n", id}: 1}
		changes, _, err := relist(t.Context(), c, mirror)
		if want := (map[string]int{"node gone": 1, "job gone": 1, "alloc gone": 1, "unblocked": 1}); err != nil || !maps.Equal(kinds(changes), want) {
			t.Errorf("of %s alone gone are %v, %v", id, kinds(changes), err)
		}
	}
}

// Nomad is at an earlier index where any of its lists is.
func TestAnyListShowsThatNomadWasRewound(t *testing.T) {
	before := listed{nodes: 5, allocs: 5, jobs: 5, evals: 5}
	for _, row := range []struct {
		now  listed
		want bool
	}{
		{listed{5, 5, 5, 5}, false}, {listed{6, 6, 6, 6}, false}, {listed{4, 5, 5, 5}, true}, {listed{5, 4, 5, 5}, true}, {listed{5, 5, 4, 5}, true}, {listed{5, 5, 5, 4}, true}, {listed{9, 9, 4, 9}, true},
	} {
		if got := row.now.rewound(before); got != row.want {
			t.Errorf("%+v after %+v: %v", row.now, before, got)
		}
	}
}

// A list is asked for in all namespaces, with all that is said of how.
func TestWhatAListIsAskedFor(t *testing.T) {
	for _, row := range []struct {
		given []string
		want  map[string]string
	}{
		{nil, map[string]string{}}, {[]string{"a", "1"}, map[string]string{"a": "1"}}, {[]string{"a", "1", "b", "2"}, map[string]string{"a": "1", "b": "2"}}, {[]string{"a", "1", "b"}, map[string]string{"a": "1"}},
	} {
		if q := query(context.Background(), row.given...); q.Namespace != "*" || !maps.Equal(q.Params, row.want) {
			t.Errorf("%q is asked as %q in %q", row.given, q.Params, q.Namespace)
		}
	}
}

// What is measured of a GPU is what was measured last, of whichever of its instances; what is told
// as a text, or not at all, is not known.
func TestWhatIsMeasuredOfAGPU(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	told := func(second int64, attributes map[string]*api.StatValue) *api.DeviceStats {
		return &api.DeviceStats{Timestamp: at(second), Stats: &api.StatObject{Attributes: attributes}}
	}
	whole := func(n int64) *api.StatValue { return &api.StatValue{IntNumeratorVal: &n} }
	part := func(n float64) *api.StatValue { return &api.StatValue{FloatNumeratorVal: &n} }
	text := &api.StatValue{StringVal: ptr("N/A")}
	all := func(n int64) map[string]*api.StatValue {
		return map[string]*api.StatValue{"GPU utilization": whole(n), "Memory state": whole(n), "Temperature": whole(n), "Power usage": part(float64(n) + 0.5)}
	}
	for name, row := range map[string]struct {
		stats []*api.DeviceStats
		want  *view.Measured
	}{
		"all":                    {[]*api.DeviceStats{told(10, all(3))}, &view.Measured{At: at(10), Milli: 30, MemoryMiB: 3, TemperatureC: 3, PowerW: 4}},
		"a later one":            {[]*api.DeviceStats{told(10, all(3)), told(11, all(4))}, &view.Measured{At: at(11), Milli: 40, MemoryMiB: 4, TemperatureC: 4, PowerW: 5}},
		"an earlier one":         {[]*api.DeviceStats{told(10, all(3)), told(9, all(4))}, &view.Measured{At: at(10), Milli: 30, MemoryMiB: 3, TemperatureC: 3, PowerW: 4}},
		"another of the time":    {[]*api.DeviceStats{told(10, all(3)), told(10, all(4))}, &view.Measured{At: at(10), Milli: 30, MemoryMiB: 3, TemperatureC: 3, PowerW: 4}},
		"one without a time":     {[]*api.DeviceStats{{Stats: &api.StatObject{Attributes: all(3)}}}, &view.Measured{Milli: 30, MemoryMiB: 3, TemperatureC: 3, PowerW: 4}},
		"a text":                 {[]*api.DeviceStats{told(10, map[string]*api.StatValue{"GPU utilization": text, "Memory state": text, "Power usage": whole(70)})}, &view.Measured{At: at(10), Milli: -1, MemoryMiB: -1, TemperatureC: -1, PowerW: 70}},
		"nothing that is wanted": {[]*api.DeviceStats{told(10, map[string]*api.StatValue{"Fan": whole(7)}), told(10, map[string]*api.StatValue{"Temperature": nil}), {Timestamp: at(10)}}, nil},
	} {
		m := NewMeasurements()
		for _, s := range row.stats {
			m.add("GPU-a", s)
		}
		want := map[string]view.Measured{}
		if row.want != nil {
			want["GPU-a"] = *row.want
		}
		if !reflect.DeepEqual(m.GPUs, want) {
			t.Errorf("%s: %+v, want %+v", name, m.GPUs, want)
		}
	}
}

// What a task uses is known where any of it is told.
func TestWhatATaskUses(t *testing.T) {
	now := time.Unix(100, 0)
	whole := func(n int64) *api.StatValue { return &api.StatValue{IntNumeratorVal: &n} }
	for name, row := range map[string]struct {
		stats *api.StatObject
		want  *TaskUse
	}{
		"nothing":     {nil, nil},
		"none of it":  {&api.StatObject{Attributes: map[string]*api.StatValue{"Temperature": whole(50)}}, nil},
		"memory":      {&api.StatObject{Attributes: map[string]*api.StatValue{"Task memory": whole(50)}}, &TaskUse{At: now, Milli: -1, MemoryMiB: 50}},
		"compute":     {&api.StatObject{Attributes: map[string]*api.StatValue{"Task compute": whole(300)}}, &TaskUse{At: now, Milli: 300, MemoryMiB: -1}},
		"both":        {&api.StatObject{Attributes: map[string]*api.StatValue{"Task compute": whole(300), "Task memory": whole(50)}}, &TaskUse{At: now, Milli: 300, MemoryMiB: 50}},
		"a seat":      {&api.StatObject{Attributes: map[string]*api.StatValue{"Task seat": {StringVal: ptr("suspended")}}}, &TaskUse{At: now, Milli: -1, MemoryMiB: -1, Seat: "suspended"}},
		"no seat":     {&api.StatObject{Attributes: map[string]*api.StatValue{"Task seat": whole(1)}}, nil},
		"no seat yet": {&api.StatObject{Attributes: map[string]*api.StatValue{"Task seat": nil}}, nil},
	} {
		m := NewMeasurements()
		m.addTask("GPU-a::0", &api.DeviceStats{Timestamp: now, Stats: row.stats})
		want := map[string]TaskUse{}
		if row.want != nil {
			want["GPU-a::0"] = *row.want
		}
		if !reflect.DeepEqual(m.Tasks, want) {
			t.Errorf("%s: %+v, want %+v", name, m.Tasks, want)
		}
	}
}

// Measurements come by device group and instance; what is no instance is left out.
func TestAMeasurementOfANode(t *testing.T) {
	m := &inMemory{answer: func(r *http.Request) (int, any) {
		if r.URL.Query().Get("node_id") != "n1" {
			t.Errorf("asked %s", r.URL)
		}
		return http.StatusOK, `{"DeviceStats":[
			{"InstanceStats":{"GPU-a::1":{"Stats":{"Attributes":{"Temperature":{"IntNumeratorVal":40},"Task memory":{"IntNumeratorVal":7}}}},"GPU-b":null,"GPU-c::x":{"Stats":{"Attributes":{"Temperature":{"IntNumeratorVal":40}}}}}},
			{"InstanceStats":{"GPU-d":{"Stats":{"Attributes":{"Temperature":{"IntNumeratorVal":50}}}}}}]}`
	}}
	got, err := NewClient(m.client(t)).Measure(t.Context(), "n1")
	if err != nil || len(got.GPUs) != 2 || got.GPUs["GPU-a"].TemperatureC != 40 || got.GPUs["GPU-d"].TemperatureC != 50 || len(got.Tasks) != 1 || got.Tasks["GPU-a::1"].MemoryMiB != 7 {
		t.Errorf("measured %+v, %v", got, err)
	}
}
