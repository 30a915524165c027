// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// What tasks hold of a device is added up, and all of it stays all.
func TestWhatIsHeldAddsUp(t *testing.T) {
	lease := func(uuid string, slices ...int) gpu.Lease {
		return gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: uuid, Slices: slices}, {UUID: "GPU-z", Slices: []int{9}}}}
	}
	sum := Merge(Holders([]gpu.Lease{lease("GPU-a", 1, 2), lease("GPU-a", 5), lease("GPU-b")}), Holders([]gpu.Lease{lease("GPU-b", 3), lease("GPU-c"), lease("GPU-a", 7)}))
	for uuid, want := range map[string]string{"GPU-a": "map[1:true 2:true 5:true 7:true] false", "GPU-b": "map[3:true] true", "GPU-c": "map[] true", "GPU-z": "map[9:true] false"} {
		if got := fmt.Sprint(sum[uuid].Slices, sum[uuid].All); got != want {
			t.Errorf("%s: %s, want %s", uuid, got, want)
		}
	}
	for name, tc := range map[string]struct {
		h    Holder
		want bool
	}{"nothing": {Holder{}, false}, "an empty set": {Holder{Slices: map[int]bool{}}, false}, "a slice": {Holder{Slices: map[int]bool{0: true}}, true}, "all": {Holder{All: true}, true}} {
		if tc.h.Any() != tc.want {
			t.Errorf("%s is held: %v", name, tc.h.Any())
		}
	}
	if got := TasksOn([]gpu.Lease{lease("GPU-a"), lease("GPU-b")}); got["GPU-a"] != 1 || got["GPU-z"] != 2 {
		t.Errorf("tasks are %v", got)
	}
}
