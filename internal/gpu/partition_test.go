// SPDX-License-Identifier: MPL-2.0

package gpu

import "testing"

func TestChunksOfAGuarantee(t *testing.T) {
	for _, tc := range []struct {
		milli  int64
		chunks int
		want   int
	}{
		{0, 16, 1}, {1, 16, 1}, {62, 16, 1}, {63, 16, 2}, {125, 16, 2}, {500, 16, 8}, {501, 16, 9}, {1000, 16, 16}, {1000, 27, 27}, {999, 27, 27},
	} {
		if got := (MPSPartitioning{Chunks: tc.chunks}).For(tc.milli); got != tc.want {
			t.Errorf("%d milli of %d chunks are %d, want %d", tc.milli, tc.chunks, got, tc.want)
		}
	}
}

func TestChunksOnADevice(t *testing.T) {
	holding := func(uuid string, chunks int) Holding {
		h := Holding{UUID: uuid}
		if chunks > 0 {
			h.Partition = &Partition{Chunks: chunks}
		}
		return h
	}
	leases := []Lease{
		{Phase: PhaseRunning, Holdings: []Holding{holding("GPU-b", 9), holding("GPU-a", 2)}},
		{Phase: PhaseStarting, Holdings: []Holding{holding("GPU-a", 3)}},
		{Phase: PhaseEnded, Holdings: []Holding{holding("GPU-a", 4)}},
		{Phase: PhaseRunning, Holdings: []Holding{holding("GPU-a", 0)}},
	}
	if got := ChunksOn("GPU-a", leases); got != 5 {
		t.Errorf("%d chunks", got)
	}
}
