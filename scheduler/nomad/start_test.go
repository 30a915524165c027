// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// What prepares a task, or stands beside it, may have begun long before what uses the GPU.
func TestAnAllocStartsWithItsGPUs(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	for name, tc := range map[string]struct {
		holders []string
		tasks   map[string]*api.TaskState
		want    time.Time
	}{
		"all":             {[]string{"a", "b"}, map[string]*api.TaskState{"a": {StartedAt: late}, "b": {StartedAt: early}}, late},
		"not all":         {[]string{"a", "b"}, map[string]*api.TaskState{"a": {StartedAt: late}, "b": {}}, time.Time{}},
		"a prestart task": {[]string{"a"}, map[string]*api.TaskState{"a": {}, "pull": {StartedAt: early}}, time.Time{}},
		"a sidecar":       {[]string{"a"}, map[string]*api.TaskState{"a": {StartedAt: early}, "log": {StartedAt: late}}, early},
		"listed":          {[]string{"a"}, nil, time.Time{}},
		"without GPUs":    {nil, map[string]*api.TaskState{"a": {StartedAt: early}}, time.Time{}},
	} {
		resources := &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{}}
		for _, task := range tc.holders {
			resources.Tasks[task] = &api.AllocatedTaskResources{Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "T4", DeviceIDs: []string{task}}}}
		}
		if got := NewAlloc(&api.AllocationListStub{ClientStatus: "running", TaskStates: tc.tasks, AllocatedResources: resources}).Began; !got.Equal(tc.want) {
			t.Errorf("%s: began %s, want %s", name, got, tc.want)
		}
	}
}
