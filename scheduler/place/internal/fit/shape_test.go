// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// A share that covers slices leaves no GPU without compute while slices are free, and no
// fewer would do.
func TestCovering(t *testing.T) {
	for share := int64(1); share < cluster.GPUMilli; share++ {
		for _, n := range []int64{1, 7, 10, 31, 80} {
			got := covering(share, n)
			if got > 1 && (n/(got-1))*share <= cluster.GPUMilli && (got-1)*cluster.GPUMilli >= share*n {
				t.Fatalf("share %d covers %d of %d slices, and fewer would do", share, got, n)
			}
			if n/got*share > cluster.GPUMilli {
				t.Fatalf("share %d covers %d of %d slices: %d tasks would ask for more than the GPU", share, got, n, n/got)
			}
		}
	}
	for _, c := range []struct{ share, slices, want int64 }{{300, 10, 3}, {350, 10, 4}, {500, 10, 5}, {1, 10, 1}, {999, 10, 9}} {
		if got := covering(c.share, c.slices); got != c.want {
			t.Errorf("share %d covers %d of %d slices, want %d", c.share, got, c.slices, c.want)
		}
	}
}
