// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// What a task says of its work comes by its driver's events. An alloc's work is saved
// since all of its tasks with GPUs have said so.
func TestAnAllocsWorkIsSaved(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 3, 1, 10, minute, 0, 0, time.UTC) }
	said := func(minute int) *api.TaskEvent {
		return &api.TaskEvent{Type: api.TaskDriverMessage, Details: map[string]string{gpu.SavedDetail: at(minute).Format(time.RFC3339Nano)}}
	}
	events := func(all ...*api.TaskEvent) *api.TaskState { return &api.TaskState{Events: all} }
	for name, tc := range map[string]struct {
		states map[string]*api.TaskState
		want   time.Time
	}{
		"nothing was said":      {map[string]*api.TaskState{"a": events(&api.TaskEvent{Type: api.TaskStarted})}, time.Time{}},
		"by one of two":         {map[string]*api.TaskState{"a": events(said(1))}, time.Time{}},
		"by both":               {map[string]*api.TaskState{"a": events(said(1), said(5), said(3)), "b": events(said(4)), "no-gpu": events(said(0))}, at(4)},
		"not by another's word": {map[string]*api.TaskState{"a": events(said(1)), "b": events(&api.TaskEvent{Type: api.TaskSignaling, Details: said(2).Details})}, time.Time{}},
		"not in garbage":        {map[string]*api.TaskState{"a": events(said(1)), "b": events(&api.TaskEvent{Type: api.TaskDriverMessage, Details: map[string]string{gpu.SavedDetail: "yesterday"}})}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			devices := func() *api.AllocatedTaskResources {
				return &api.AllocatedTaskResources{Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "slice", Name: "T4/0", DeviceIDs: []string{"x"}}}}
			}
			a := NewAlloc(&api.AllocationListStub{ID: "id", TaskStates: tc.states, AllocatedResources: &api.AllocatedResources{
				Tasks: map[string]*api.AllocatedTaskResources{"a": devices(), "b": devices(), "no-gpu": {}}}})
			if got := a.SavedAt(); !got.Equal(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// Nomad keeps ten events of a task: what was said before them is still known.
func TestWhatWasSaidIsKept(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	a := &Alloc{Devices: []TaskDevices{{Task: "a"}, {Task: "b"}}, Saved: map[string]time.Time{"a": late}}
	a.KeepSaid(&Alloc{Saved: map[string]time.Time{"a": early, "b": early}})
	if got := a.SavedAt(); !got.Equal(early) || !a.Saved["a"].Equal(late) {
		t.Errorf("got %v of %v", got, a.Saved)
	}
}

// What a task made of its guarantee holds until it is started again.
func TestComputeOfATaskThatRuns(t *testing.T) {
	resized := func(milli string) *api.TaskEvent {
		return &api.TaskEvent{Type: api.TaskDriverMessage, Details: map[string]string{gpu.ComputeDetail: milli}}
	}
	started := &api.TaskEvent{Type: api.TaskStarted}
	for name, tc := range map[string]struct {
		events []*api.TaskEvent
		want   int64
	}{
		"none":                  {[]*api.TaskEvent{started}, 0},
		"the last word":         {[]*api.TaskEvent{started, resized("300"), resized("200")}, 200},
		"a start ends it":       {[]*api.TaskEvent{resized("300"), started}, 0},
		"and another begins it": {[]*api.TaskEvent{resized("300"), started, resized("400")}, 400},
		"not garbage":           {[]*api.TaskEvent{started, resized("-1"), resized("1001"), resized("x")}, 0},
		"not another's word":    {[]*api.TaskEvent{started, {Type: api.TaskSignaling, Details: resized("300").Details}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAlloc(&api.AllocationListStub{ID: "id", TaskStates: map[string]*api.TaskState{"a": {Events: tc.events}}})
			if got := a.Compute["a"]; got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
