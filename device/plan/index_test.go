// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// reserveFrom plans a machine, equips it and reserves.
// hamiRegion stands for the file of a reservation.
const hamiRegion = "/tmp/nomad-gpu-….cache"

func reserveFrom(t *testing.T, config string, change func([]*Unit), ids ...string) (map[string]string, error) {
	t.Helper()
	units := Units(testConfig(t, config), testRegistry(), testMachine(3), quiet())
	for _, u := range units {
		u.MPS = &gpu.MPSState{PipeDir: "/p", LogDir: "/l", ShmDir: "/s", Ready: true}
		u.HAMi = &gpu.HAMiState{Library: "/opt/libvgpu.so"}
	}
	if change != nil {
		change(units)
	}
	_, r, err := NewIndex(units).Reserve(ids)
	if err != nil {
		return nil, err
	}
	return r.Envs, nil
}

func sliceIDs(uuid string, numbers ...int) []string {
	var ids []string
	for _, n := range numbers {
		ids = append(ids, gpu.SliceID{UUID: uuid, N: n}.String())
	}
	return ids
}

func allSlices() []int {
	var all []int
	for n := range 79 {
		all = append(all, n)
	}
	return all
}

func TestReserve(t *testing.T) {
	a, b := testUUID(0), testUUID(1)
	for _, tc := range []struct {
		name, config string
		ids          []string
		want         map[string]string
	}{
		{"two whole GPUs", "", []string{b, a}, map[string]string{
			"NOMAD_GPU_00000001_0":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"whole","memory_mib":81559,"milli":1000,"burst_milli":1000},{"uuid":"` + b + `","mode":"whole","memory_mib":81559,"milli":1000,"burst_milli":1000}]}`,
			"NVIDIA_VISIBLE_DEVICES": a + "," + b, "CUDA_VISIBLE_DEVICES": a + "," + b,
		}},
		{"slices", sliced, sliceIDs(a, 11, 9, 10), map[string]string{
			"NOMAD_GPU_00000001_9":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"slice","slices":[9,10,11],"of":79,"memory_mib":3072,"milli":37,"burst_milli":1000}]}`,
			"NVIDIA_VISIBLE_DEVICES": a, "CUDA_VISIBLE_DEVICES": a,
			"CUDA_MPS_PIPE_DIRECTORY": "/p", "CUDA_MPS_LOG_DIRECTORY": "/l", "CUDA_MPS_SHM_DIRECTORY": "/s",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "4",
		}},
		{"all slices are the GPU", sliced, sliceIDs(a, allSlices()...), map[string]string{
			"NOMAD_GPU_00000001_0":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"slice","slices":[` + commas(allSlices()) + `],"of":79,"memory_mib":81559,"milli":1000,"burst_milli":1000}]}`,
			"NVIDIA_VISIBLE_DEVICES": a, "CUDA_VISIBLE_DEVICES": a,
		}},
		{"a replica", "mode = \"shared\"", sliceIDs(a, 1), map[string]string{
			"NOMAD_GPU_00000001_1":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"shared","slices":[1],"of":4,"burst_milli":1000}]}`,
			"NVIDIA_VISIBLE_DEVICES": a, "CUDA_VISIBLE_DEVICES": a,
		}},
		{"a replica through MPS", "mode = \"shared\"\nsharing = \"mps\"\ncompute_burst = 400", sliceIDs(a, 1), map[string]string{
			"NOMAD_GPU_00000001_1":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"shared","slices":[1],"of":4,"burst_milli":400}]}`,
			"NVIDIA_VISIBLE_DEVICES": a, "CUDA_VISIBLE_DEVICES": a,
			"CUDA_MPS_PIPE_DIRECTORY": "/p", "CUDA_MPS_LOG_DIRECTORY": "/l", "CUDA_MPS_SHM_DIRECTORY": "/s", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
		}},
		{"slices through HAMi-core", sliced + "sharing = \"hami\"\nhami { library = \"/opt/libvgpu.so\" }", sliceIDs(a, 0, 1), map[string]string{
			"NOMAD_GPU_00000001_0":   `{"v":1,"vendor":"nvidia","devices":[{"uuid":"` + a + `","mode":"slice","slices":[0,1],"of":79,"memory_mib":2048,"milli":25,"burst_milli":1000}]}`,
			"NVIDIA_VISIBLE_DEVICES": a, "CUDA_VISIBLE_DEVICES": a,
			"LD_PRELOAD": "/opt/libvgpu.so", "CUDA_REDIRECT": "/opt/libvgpu.so", "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m", "CUDA_DEVICE_SM_LIMIT": "3",
			"CUDA_DEVICE_MEMORY_SHARED_CACHE": hamiRegion,
		}},
	} {
		got, err := reserveFrom(t, tc.config, nil, tc.ids...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if region, ok := got[gpu.EnvHAMiCache]; ok {
			// HAMi-core takes the limits from the file where there is one.
			if again, err := reserveFrom(t, tc.config, nil, tc.ids...); err != nil || again[gpu.EnvHAMiCache] == region {
				t.Errorf("%s: two reservations have the file %s, %v", tc.name, region, err)
			}
			if path.Dir(region) == "/tmp" && strings.HasPrefix(path.Base(region), "nomad-gpu-") {
				got[gpu.EnvHAMiCache] = hamiRegion
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: environment differs (-want +got):\n%s", tc.name, diff)
		}
		if _, err := gpu.ReservationsFromEnv(got); err != nil {
			t.Errorf("%s: the driver cannot read it: %v", tc.name, err)
		}
	}
}

func commas(numbers []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
}

func TestReserveRefuses(t *testing.T) {
	a, b := testUUID(0), testUUID(1)
	sick := func(units []*Unit) {
		units[0].Faults = []gpu.Fault{{Code: "xid-79", Message: "it is gone", Action: "replace it", Since: time.Unix(0, 0)}}
	}
	for _, tc := range []struct {
		name, config string
		change       func([]*Unit)
		ids          []string
		says         string
	}{
		{"nothing", sliced, nil, nil, "no instance is named"},
		{"unknown GPU", sliced, nil, []string{"GPU-x::1"}, "submit the job again"},
		{"unknown slice", sliced, nil, sliceIDs(a, 79), "no such device"},
		{"malformed", sliced, nil, []string{a + "::x"}, "is not a number"},
		{"whole GPU that is sliced", sliced, nil, []string{a}, "no such device"},
		{"two GPUs at once", sliced, nil, slices.Concat(sliceIDs(a, 1), sliceIDs(b, 1)), "one request is served from one group"},
		{"a slice twice", sliced, nil, sliceIDs(a, 1, 1), "named twice"},
		{"a GPU twice", "", nil, []string{a, a}, "named twice"},
		{"sick", sliced, sick, sliceIDs(a, 1), "xid-79: it is gone (since 1970-01-01 00:00:00 UTC); replace it"},
		{"cordoned", sliced, func(u []*Unit) { u[0].Cordon = "by hand" }, sliceIDs(a, 1), "takes no new work: cordoned: by hand"},
	} {
		if _, err := reserveFrom(t, tc.config, tc.change, tc.ids...); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.says)
		}
	}
	if _, err := reserveFrom(t, sliced, sick, sliceIDs(b, 1)...); err != nil {
		t.Errorf("its neighbor: %v", err)
	}
}
