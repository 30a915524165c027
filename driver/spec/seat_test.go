// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestSeats(t *testing.T) {
	seat := gpu.ReservedDevice{UUID: "GPU-1", Mode: gpu.ModeShared, Slices: []int{1}, Of: 4, BurstMilli: 1000}
	state := gpu.GPUState{UUID: "GPU-1", Mode: gpu.ModeShared, Sharing: gpu.SharingSuspend, CDIDevice: "c", MemoryMiB: 80 << 10,
		Seats: &gpu.SeatRules{MaxPriority: 60}}
	ruleless, sliced := state, state
	ruleless.Seats = nil
	sliced.Sharing = gpu.SharingTimeslice
	for name, tc := range map[string]struct {
		state    gpu.GPUState
		more     int
		want     taskconfig.GPURequest
		mib      int64
		priority int
		says     string
	}{
		"says nothing":            {state, 0, taskconfig.GPURequest{}, 80<<10 + 1638, 50, ""},
		"says its memory":         {state, 0, taskconfig.GPURequest{MemoryMiB: 1 << 10}, 1<<10 + 64, 50, ""},
		"below normal":            {state, 0, taskconfig.GPURequest{BelowNormal: true}, 80<<10 + 1638, 25, ""},
		"a number":                {state, 0, taskconfig.GPURequest{SeatPriority: 60}, 80<<10 + 1638, 60, ""},
		"more than it may":        {state, 0, taskconfig.GPURequest{SeatPriority: 61}, 0, 0, "gpu.priority: 61 is not valid (1 to 60: this node's operator allows no more, suspend.max_priority)"},
		"a number elsewhere":      {sliced, 0, taskconfig.GPURequest{SeatPriority: 60}, 0, 0, `gpu.priority: 60 is for tasks that step aside for each other (sharing = "suspend")`},
		"two GPUs":                {state, 1, taskconfig.GPURequest{}, 0, 0, "task holds a seat on GPU GPU-1 and 1 more GPUs: a task with a seat can use that one GPU only"},
		"a plugin without a rule": {ruleless, 0, taskconfig.GPURequest{}, 0, 0, "does not say how its tasks step aside"},
	} {
		t.Run(name, func(t *testing.T) {
			devices, states := []gpu.ReservedDevice{seat}, map[string]gpu.GPUState{"GPU-1": tc.state}
			if tc.more > 0 {
				devices = append(devices, gpu.ReservedDevice{UUID: "GPU-2", Mode: gpu.ModeWhole})
				states["GPU-2"] = gpu.GPUState{UUID: "GPU-2", Mode: gpu.ModeWhole, CDIDevice: "d"}
			}
			share, err := NewShare(devices, states, tc.want)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || share.Holdings[0].SeatMiB != tc.mib || share.Holdings[0].SeatPriority != tc.priority {
				t.Errorf("got %+v, %v", share.Holdings, err)
			}
		})
	}
}
