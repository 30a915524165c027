// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

func TestDeviceBlocks(t *testing.T) {
	const gib = "${device.attr.slice_memory} >= 1024 MiB"
	for _, row := range []struct {
		request   string
		limit     int64
		counts    []int64
		share     gpu.Share
		constrain string
	}{
		{request: "8G", counts: []int64{8}, constrain: gib},
		{request: "7500M", counts: []int64{8}, share: gpu.Share{MemoryMiB: 7500}, constrain: gib},
		{request: "8G,0.25", counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250}, constrain: gib},
		{request: "8G,0.25", limit: 800, counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250, LimitMilli: 800}, constrain: gib},
		{request: "0.5", counts: []int64{8}, constrain: "${device.attr.slices} = 16"},
		{request: "0.25(T4)", counts: []int64{4}, constrain: "${device.attr.type} = T4; ${device.attr.slices} = 16"},
		{request: "1", counts: []int64{16}, constrain: "${device.attr.slices} = 16"},
		{request: "2", counts: []int64{16, 16}, constrain: "${device.attr.slices} = 16"},
		{request: "16G", counts: []int64{16}, constrain: gib},
	} {
		b := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := servicetest.Ask("job", row.request, 1)
		a.Tasks[0].LimitMilli = row.limit
		d := b.Submit(t, a)
		var counts []int64
		for _, device := range d.Tasks[0].Devices {
			counts = append(counts, device.Count)
			if device.Name != "nvidia/slice" || device.Prefer == "" {
				t.Errorf("%s: block %+v", row.request, device)
			}
		}
		var constraints []string
		for _, c := range d.Tasks[0].Devices[0].Constraints {
			constraints = append(constraints, c.LTarget+" "+c.Operand+" "+c.RTarget)
		}
		if !slices.Equal(counts, row.counts) || d.Tasks[0].Share != row.share || strings.Join(constraints, "; ") != row.constrain {
			t.Errorf("%s: counts %v, share %+v, constraints %q", row.request, counts, d.Tasks[0].Share, constraints)
		}
	}
}

// Nomad counts slices only, and where it alone chooses the GPU nothing else
// keeps the compute of several allocs within it: they hold the slices for it.
func TestComputeIsCoveredBySlicesWhereNomadChooses(t *testing.T) {
	batch := func(a *admit.Ask) { a.JobType, a.Later = "batch", true }
	for _, row := range []struct {
		request string
		count   int
		change  func(*admit.Ask)
		want    int64 // slices
		share   gpu.Share
	}{
		{"4G,0.75", 1, nil, 4, gpu.Share{GuaranteeMilli: 750}},
		{"4G,0.75", 2, nil, 12, gpu.Share{MemoryMiB: 4096}},
		{"4G,0.75", 1, batch, 12, gpu.Share{MemoryMiB: 4096}},
		{"8G,0.25", 3, nil, 8, gpu.Share{GuaranteeMilli: 250}},
		{"4G", 3, nil, 4, gpu.Share{}},
		{"0.3", 3, nil, 5, gpu.Share{GuaranteeMilli: 300}}, // 4 of 16 would let four of them on a GPU
		{"0.3", 1, nil, 4, gpu.Share{GuaranteeMilli: 300}},
	} {
		b := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := servicetest.Ask("job", row.request, row.count)
		if row.change != nil {
			row.change(&a)
		}
		d := b.Submit(t, a)
		if got := d.Tasks[0]; got.Devices[0].Count != row.want || got.Share != row.share {
			t.Errorf("%s, count %d: %d slices and %+v, want %d and %+v", row.request, row.count, got.Devices[0].Count, got.Share, row.want, row.share)
		}
		if slices.ContainsFunc(d.Explanation, isWarning) {
			t.Errorf("%s, count %d: %q", row.request, row.count, d.Explanation)
		}
	}
}

// What runs keeps its device blocks when the count grows, and its owner is told
// what they do not protect.
func TestAGrowingGroupKeepsItsBlocksAndIsWarned(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 2))
	a := servicetest.Ask("job", "4G,0.75", 1)
	first := b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc", "a", 0, 0, 4)
	a.Count = 2
	second := b.Submit(t, a)
	if !reflect.DeepEqual(first.Tasks[0].Devices[0].Count, second.Tasks[0].Devices[0].Count) || !slices.ContainsFunc(second.Explanation, isWarning) {
		t.Errorf("first %+v\nthen  %+v", first, second)
	}
}

// isWarning tells of what the device blocks of a group that grew do not protect.
func isWarning(line string) bool {
	return strings.Contains(line, "the device blocks are from when the count was 1")
}
