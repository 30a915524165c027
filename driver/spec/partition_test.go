// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// A task under static partitioning has as many chunks as its guarantee takes, and neither
// a percentage nor a limit above.
func TestShareOfPartitions(t *testing.T) {
	replica := gpu.ReservedDevice{UUID: uuidA, Mode: gpu.ModeShared, Slices: []int{2}, Of: 4, BurstMilli: 1000}
	for name, tc := range map[string]struct {
		device    gpu.ReservedDevice
		want      taskconfig.GPURequest
		chunks    int
		guarantee int64
		says      string
	}{
		"a slice":                {slicesOf(uuidA, 1), taskconfig.GPURequest{}, 1, 12, ""},
		"eight slices":           {slicesOf(uuidA, 8), taskconfig.GPURequest{}, 2, 101, ""},
		"a guarantee":            {slicesOf(uuidA, 1), taskconfig.GPURequest{ComputeMilli: 500}, 8, 500, ""},
		"a little more":          {slicesOf(uuidA, 1), taskconfig.GPURequest{ComputeMilli: 501}, 9, 501, ""},
		"a limit that is it":     {slicesOf(uuidA, 1), taskconfig.GPURequest{ComputeMilli: 500, ComputeLimitMilli: 500}, 8, 500, ""},
		"a limit above":          {slicesOf(uuidA, 1), taskconfig.GPURequest{ComputeMilli: 500, ComputeLimitMilli: 800}, 0, 0, "gpu.compute_limit: 800 is not the guarantee, 500"},
		"a replica":              {replica, taskconfig.GPURequest{}, 4, 250, ""},
		"all slices, without it": {slicesOf(uuidA, 79), taskconfig.GPURequest{}, 0, 1000, ""},
	} {
		s := state(uuidA, gpu.SharingMPS)
		s.Mode = tc.device.Mode
		s.MPS.Partitioning = &gpu.MPSPartitioning{Chunks: 16, Multiprocessors: 132}
		share, err := NewShare([]gpu.ReservedDevice{tc.device}, map[string]gpu.GPUState{uuidA: s}, tc.want)
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		h, chunks := share.Holdings[0], 0
		if h.Partition != nil {
			chunks = h.Partition.Chunks
			share.SetPartition(uuidA, "some/id=")
			if share.Env[gpu.EnvMPSPartition] != uuidA+"/some/id=" || h.LimitMilli != h.GuaranteeMilli {
				t.Errorf("%s: %+v with %v", name, h, share.Env)
			}
		}
		if _, threads := share.Env[gpu.EnvMPSThreads]; chunks != tc.chunks || h.GuaranteeMilli != tc.guarantee || threads {
			t.Errorf("%s: %d chunks, %+v, %v", name, chunks, h, share.Env)
		}
	}
}
