// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// What a task's guarantee is told to be counts from a thousandth of a GPU to a whole one.
func TestWhatAGuaranteeMayBe(t *testing.T) {
	for milli, want := range map[int64]int64{0: 0, 1: 1, 2: 2, 999: 999, gpu.MilliPerGPU: gpu.MilliPerGPU, gpu.MilliPerGPU + 1: 0, -1: 0} {
		var a Alloc
		a.noteCompute("t", &api.TaskEvent{Type: api.TaskDriverMessage, Details: map[string]string{gpu.ComputeDetail: strconv.FormatInt(milli, 10)}})
		if a.Compute["t"] != want {
			t.Errorf("%d: %d, want %d", milli, a.Compute["t"], want)
		}
	}
}

// Only where tasks step aside for each other has a seat a priority: the default of a plugin that
// tells none.
func TestWhichPriorityASeatMayHave(t *testing.T) {
	word, number := string(gpu.SharingSuspend), int64(70)
	suspend := &api.Attribute{StringVal: &word}
	for name, row := range map[string]struct {
		of   attributes
		want int
	}{
		"none":     {attributes{}, 0},
		"not told": {attributes{gpu.AttrSharing: suspend}, gpu.NormalSeatPriority},
		"told":     {attributes{gpu.AttrSharing: suspend, gpu.AttrSeatPriority: {IntVal: &number}}, 70},
		"alone":    {attributes{gpu.AttrSeatPriority: {IntVal: &number}}, 0},
	} {
		if got := row.of.seatPriority(); got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
	}
}

// What is read after a new start of Nomad's counts as newer, whatever it is.
func TestAllThatIsReadAnewIsNewer(t *testing.T) {
	m := NewMirror(Hardware{})
	a, b := JobKey{"n", "a"}, JobKey{"n", "b"}
	m.nodes["x"], m.nodes["y"] = &Node{Index: 7}, &Node{Index: 8}
	m.allocs["x"], m.allocs["y"] = listedIn{7, a}, listedIn{8, b}
	m.jobs[a], m.jobs[b] = 7, 8
	m.blocked[a], m.blocked[b] = &Blocked{Index: 7}, &Blocked{Index: 8}
	m.rewind()
	for _, id := range []string{"x", "y"} {
		if m.nodes[id].Index != 0 || m.allocs[id].index != 0 {
			t.Errorf("%s: node %d, alloc %d", id, m.nodes[id].Index, m.allocs[id].index)
		}
	}
	for _, key := range []JobKey{a, b} {
		if m.jobs[key] != 0 || m.blocked[key].Index != 0 {
			t.Errorf("%v: job %d, blocked %d", key, m.jobs[key], m.blocked[key].Index)
		}
	}
}

// A node's GPUs are what is planned with and what is shown, in the same order.
func TestANodesGPUsArePlannedWith(t *testing.T) {
	word := "T4"
	group := func(name string) *api.NodeDeviceResource {
		return &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: name, Attributes: map[string]*api.Attribute{"type": {StringVal: &word}},
			Instances: []*api.NodeDevice{{ID: "GPU-" + name, Healthy: true}}}
	}
	n := NewNode(&api.Node{ID: "n", NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{group("a"), group("b")}}}, Hardware{})
	if at, known := n.Slot("GPU-b"); len(n.Plan.GPUs) != 2 || len(n.View.GPUs) != 2 || !known || at.GPU != 1 {
		t.Errorf("%+v, %+v, %v", n.Plan.GPUs, n.View.GPUs, at)
	}
}

// A Variable that could not be deleted says why, and that it changed where it did.
func TestWhyAVariableIsNotDeleted(t *testing.T) {
	for status, changed := range map[int]bool{http.StatusInternalServerError: false, http.StatusConflict: true} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			if _, err := w.Write([]byte(`{"Path":"p","ModifyIndex":9}`)); err != nil {
				t.Error(err)
			}
		}))
		client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
		if err != nil {
			t.Fatal(err)
		}
		err = NewStore(client, "default").Delete(t.Context(), "p", 7)
		if err == nil || errors.Is(err, ErrConflict) != changed || !changed && !strings.Contains(err.Error(), "500") {
			t.Errorf("%d: %v", status, err)
		}
		s.Close()
	}
}
