// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A task changes what it asked for within what was counted for it, and is held to the
// rules of its start.
func TestResize(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	counted := gpu.Holding{UUID: uuidA, Mode: gpu.ModeSlice, Slices: []int{0, 1, 2, 3, 4, 5, 6, 7}, Share: gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 600}}
	shrunk, unlimited := counted, counted
	unlimited.LimitMilli = 0
	shrunk.GuaranteeMilli, shrunk.LimitMilli = 200, 300
	enforced := state(uuidA, gpu.SharingMPS)
	enforced.Limiter = &gpu.MemoryLimiter{Command: []string{"limiter"}}
	for name, tc := range map[string]struct {
		now    gpu.Holding
		state  gpu.GPUState
		want   gpu.SelfResize
		share  gpu.Share
		refuse string
	}{
		"less":                         {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(200)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 200, LimitMilli: 600}, ""},
		"less, without a limit":        {unlimited, state(uuidA, gpu.SharingTimeslice), gpu.SelfResize{ComputeMilli: n(200)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 200}, ""},
		"a limit that HAMi-core keeps": {counted, state(uuidA, gpu.SharingHAMi), gpu.SelfResize{LimitMilli: n(900)}, gpu.Share{}, "limit: 0.9 cannot be held on GPU " + uuidA + ", whose sharing is hami"},
		"the least, and its limit":     {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(1), LimitMilli: n(1)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 1, LimitMilli: 1}, ""},
		"back to what was counted":     {shrunk, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(500), LimitMilli: n(900)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 900}, ""},
		"more than was counted":        {shrunk, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(501), LimitMilli: n(900)}, gpu.Share{}, "resize: compute: 0.501 is not valid on GPU " + uuidA + " (0.001 to 0.5, which the task had at its start"},
		"nothing":                      {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(0)}, gpu.Share{}, "compute: 0 is not valid"},
		"less than nothing":            {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(-1 << 62)}, gpu.Share{}, "compute: -"},
		"up to its own limit":          {shrunk, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(300)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 300, LimitMilli: 300}, ""},
		"above its own limit":          {shrunk, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(400)}, gpu.Share{}, "compute: 0.4 is above the limit of 0.3"},
		"a limit below the guarantee":  {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{LimitMilli: n(400)}, gpu.Share{}, "limit: 0.4 is not valid on GPU " + uuidA + " (0.5, the guarantee, to 0.9, which this node's operator allows)"},
		"a limit above the ceiling":    {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{LimitMilli: n(901)}, gpu.Share{}, "limit: 0.901 is not valid"},
		"a limit that nothing holds":   {counted, state(uuidA, gpu.SharingTimeslice), gpu.SelfResize{LimitMilli: n(900)}, gpu.Share{}, "limit: 0.9 cannot be held on GPU " + uuidA + ", whose sharing is timeslice"},
		"memory":                       {counted, enforced, gpu.SelfResize{MemoryLimitMiB: n(12288)}, gpu.Share{MemoryMiB: 8192, MemoryLimitMiB: 12288, GuaranteeMilli: 500, LimitMilli: 600}, ""},
		"its own memory alone":         {counted, enforced, gpu.SelfResize{MemoryLimitMiB: n(8192)}, gpu.Share{MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 600}, ""},
		"less than its own memory":     {counted, enforced, gpu.SelfResize{MemoryLimitMiB: n(8191)}, gpu.Share{}, "memory_limit: 8191M is below the 8G that are the task's own"},
		"no memory":                    {counted, enforced, gpu.SelfResize{MemoryLimitMiB: n(0)}, gpu.Share{}, "memory_limit: 0 MiB is not valid"},
		"more memory than there is":    {counted, enforced, gpu.SelfResize{MemoryLimitMiB: n(1 << 40)}, gpu.Share{}, "is more than the 79G that all slices"},
		"memory that nothing holds":    {counted, state(uuidA, gpu.SharingMPS), gpu.SelfResize{MemoryLimitMiB: n(12288)}, gpu.Share{}, "memory_limit: 12G cannot be held"},
		"a part of multiprocessors":    {gpu.Holding{UUID: uuidA, Mode: gpu.ModeSlice, Slices: []int{0}, Partition: &gpu.Partition{}}, state(uuidA, gpu.SharingMPS), gpu.SelfResize{ComputeMilli: n(100)}, gpu.Share{}, "static_partitioning"},
		"a seat":                       {gpu.Holding{UUID: uuidA, Mode: gpu.ModeShared, Slices: []int{0}}, state(uuidA, gpu.SharingSuspend), gpu.SelfResize{ComputeMilli: n(100)}, gpu.Share{}, "cannot be resized"},
		"a whole GPU":                  {gpu.Holding{UUID: uuidA, Mode: gpu.ModeWhole}, state(uuidA, gpu.SharingNone), gpu.SelfResize{ComputeMilli: n(100)}, gpu.Share{}, "cannot be resized"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Resize(tc.now, counted, 900, tc.state, tc.want)
			if tc.refuse == "" && (err != nil || got.Share != tc.share) || tc.refuse != "" && (err == nil || !strings.Contains(err.Error(), tc.refuse)) {
				t.Errorf("got %+v, %v", got.Share, err)
			}
		})
	}
}
