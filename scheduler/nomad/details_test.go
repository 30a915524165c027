// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// The first task with a GPU says how long a group runs at most, at its own level before
// the group's and the job's. What cannot be read is no limit.
func TestTimeLimitOfAGroup(t *testing.T) {
	limited := func(text string) map[string]string { return map[string]string{admit.KeyTimeLimit: text} }
	for _, row := range []struct {
		task, group, job map[string]string
		want             time.Duration
	}{
		{limited("1h"), limited("2h"), limited("3h"), time.Hour},
		{nil, limited("2h"), limited("3h"), 2 * time.Hour},
		{nil, nil, limited("3h"), 3 * time.Hour},
		{limited("soon"), limited("2h"), nil, 0},
	} {
		meta := map[string]string{admit.KeyGPU: "8G"}
		maps.Copy(meta, row.task)
		j := &api.Job{ID: ptr("j"), Meta: row.job, TaskGroups: []*api.TaskGroup{{Name: ptr("g"), Meta: row.group, Tasks: []*api.Task{
			{Name: "plain", Meta: limited("9h")}, {Name: "gpu", Meta: meta},
		}}}}
		if got := time.Duration(NewJob(j, Hardware{}).Group("g").TimeLimit); got != row.want {
			t.Errorf("with %v, %v and %v of task, group and job the limit is %s, want %s", row.task, row.group, row.job, got, row.want)
		}
	}
}

// Nomad's own limit of an allocation's time counts where it is the shorter one.
func TestMaxRunDurationOfAGroup(t *testing.T) {
	for limit, want := range map[string]time.Duration{"": time.Hour, "30m": 30 * time.Minute, "2h": time.Hour} {
		j := &api.Job{ID: ptr("j"), TaskGroups: []*api.TaskGroup{{Name: ptr("g"), MaxRunDuration: ptr(time.Hour), Tasks: []*api.Task{
			{Name: "t", Meta: map[string]string{admit.KeyGPU: "8G", admit.KeyTimeLimit: limit}},
		}}}}
		if got := NewJob(j, Hardware{}).Group("g").TimeLimit; got != want {
			t.Errorf("beside %q the limit is %s, want %s", limit, got, want)
		}
	}
}

// Of the allocs that ended those with devices are handed over, page by page.
func TestOnlyWhatHadDevicesIsHandedOver(t *testing.T) {
	stub := func(id string, devices ...*api.AllocatedDeviceResource) api.AllocationListStub {
		return api.AllocationListStub{ID: id, ClientStatus: "complete", AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {Devices: devices}}}}
	}
	one := &api.AllocatedDeviceResource{Vendor: "nvidia", Type: "slice", Name: "H100/0", DeviceIDs: []string{"GPU-1::0"}}
	pages := map[string][]api.AllocationListStub{"": {stub("a", one), stub("b")}, "second": {stub("c"), stub("d", one)}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.URL.Query().Get("next_token")
		w.Header().Set("X-Nomad-Index", "7")
		w.Header().Set("X-Nomad-LastContact", "0")
		if token == "" {
			w.Header().Set("X-Nomad-NextToken", "second")
		}
		_ = json.NewEncoder(w).Encode(pages[token])
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	err = NewClient(client).Ended(t.Context(), func(page []*Alloc) {
		var ids []string
		for _, a := range page {
			ids = append(ids, a.ID)
		}
		got = append(got, ids)
	})
	if err != nil || !slices.EqualFunc(got, [][]string{{"a"}, {"d"}}, slices.Equal) {
		t.Errorf("got %v, %v", got, err)
	}
}

// A node that is told again as it was is no change; one with a later index is.
func TestANodeAsItWasIsNoChange(t *testing.T) {
	m := NewMirror(Hardware{})
	for _, step := range []struct {
		index uint64
		news  int
	}{{5, 1}, {5, 0}, {4, 0}, {6, 1}} {
		n := &Node{Index: step.index}
		n.Plan.ID = "n"
		if got := m.node(n); len(got) != step.news {
			t.Errorf("at index %d there are %d changes, want %d", step.index, len(got), step.news)
		}
	}
}

// When the tasks of a lost alloc ended is not known: it ended when Nomad wrote that it is lost.
func TestWhenALostAllocEnded(t *testing.T) {
	told := map[string]*api.TaskState{"t": {FinishedAt: time.Unix(100, 0)}}
	for status, want := range map[string]int64{api.AllocClientStatusComplete: 100, api.AllocClientStatusLost: 900} {
		if got := endOf(&api.AllocationListStub{ClientStatus: status, ModifyTime: 900e9, TaskStates: told}); got.Unix() != want {
			t.Errorf("an alloc that is %s ended at %d, want %d", status, got.Unix(), want)
		}
	}
}
