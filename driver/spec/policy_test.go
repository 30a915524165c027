// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestGuardedVariablesStay(t *testing.T) {
	got := KeepGuarded([]string{"A=own", "B=own"}, []string{"C=new", "A=theirs", "B=own"})
	if !slices.Equal(got, []string{"A=own", "B=own", "C=new"}) {
		t.Errorf("got %q", got)
	}
}

func TestParseSeccomp(t *testing.T) {
	if p, err := ParseSeccomp([]byte(`{"defaultAction":"SCMP_ACT_LOG"}`)); err != nil || p.DefaultAction != "SCMP_ACT_LOG" {
		t.Error(p, err)
	}
	for _, bad := range []string{`[]`, `{"listenerPath":"/x"}`, `{"listenerMetadata":"x"}`} {
		if _, err := ParseSeccomp([]byte(bad)); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}

func TestSharesOfBothKinds(t *testing.T) {
	for _, sharing := range []gpu.Sharing{gpu.SharingMPS, gpu.SharingHAMi} {
		s := state(uuidA, sharing)
		s.MPS.Generation = 7
		share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: s}, taskconfig.GPURequest{})
		if err != nil {
			t.Fatal(err)
		}
		mps := sharing == gpu.SharingMPS
		if share.MPS != mps || share.HAMi == mps || (share.PipeDir() == "/mps/pipe") != mps || (share.Holdings[0].MPSGeneration == 7) != mps {
			t.Errorf("%s: %+v", sharing, share)
		}
	}
	for want, says := range map[taskconfig.GPURequest]string{
		{MemoryMiB: -1}: "gpu.memory: is negative", {ComputeMilli: 1001}: "gpu.compute: 1001 is not between", {ComputeMilli: -1}: "gpu.compute: -1",
		{ComputeLimitMilli: -1}: "gpu.compute_limit: -1 is not between",
	} {
		_, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: state(uuidA, gpu.SharingMPS)}, want)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want %q", want, err, says)
		}
	}
}

func TestLimitOfProcesses(t *testing.T) {
	if pids(taskconfig.Config{PidsLimit: -1}, taskconfig.Policy{}) != nil || *pids(taskconfig.Config{PidsLimit: 1}, taskconfig.Policy{}).Limit != 1 {
		t.Error("pids_limit is not what was asked for")
	}
}
