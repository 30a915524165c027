package decide

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestDeviceBlocks(t *testing.T) {
	for _, row := range []struct {
		request   string
		limit     int64
		counts    []int64
		share     gpu.Share
		constrain string
	}{
		{request: "8G", counts: []int64{8}},
		{request: "7500M", counts: []int64{8}, share: gpu.Share{MemoryMiB: 7500}},
		{request: "8G,0.25", counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250}},
		{request: "8G,0.25", limit: 800, counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250, LimitMilli: 800}},
		{request: "0.5", counts: []int64{8}, constrain: "${device.attr.slices} = 16"},
		{request: "0.25(T4)", counts: []int64{4}, constrain: "${device.attr.type} = T4; ${device.attr.slices} = 16"},
		{request: "1", counts: []int64{16}, constrain: "${device.attr.slices} = 16"},
		{request: "2", counts: []int64{16, 16}, constrain: "${device.attr.slices} = 16"},
		{request: "16G", counts: []int64{16}},
	} {
		b := newBench(t, "", machine("a", 2))
		a := ask("job", row.request, 1)
		a.Tasks[0].LimitMilli = row.limit
		d := b.decide(t, a)
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

// Nomad counts slices only, so nothing keeps two such allocs off one GPU.
func TestComputeBeyondMemoryIsWarnedOf(t *testing.T) {
	for _, row := range []struct {
		request string
		count   int
		want    bool
	}{{"4G,0.75", 2, true}, {"4G,0.75", 1, false}, {"4G", 2, false}, {"8G,0.25", 2, false}, {"1", 2, false}} {
		b := newBench(t, "", machine("a", 2))
		d := b.decide(t, ask("job", row.request, row.count))
		if got := slices.Contains(d.Explanation, unpinned); got != row.want {
			t.Errorf("%s, count %d: %q", row.request, row.count, d.Explanation)
		}
	}
}
