// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"reflect"
	"strings"
	"testing"
)

const (
	uuidA = "GPU-1a2b3c4d-0000-0000-0000-000000000001"
	uuidB = "GPU-5e6f7a8b-0000-0000-0000-000000000002"
)

func slicesOf(uuid string, numbers ...int) Reservation {
	return Reservation{Version: 1, Vendor: "nvidia", Devices: []ReservedDevice{{
		UUID: uuid, Mode: ModeSlice, Slices: numbers, Of: 79,
		MemoryMiB: int64(len(numbers)) * 1024, Milli: int64(len(numbers)) * 1000 / 79, BurstMilli: 1000,
	}}}
}

func TestSliceID(t *testing.T) {
	id, sliced, err := ParseSliceID(uuidA + "::7")
	if err != nil || !sliced || id != (SliceID{UUID: uuidA, N: 7}) || id.String() != uuidA+"::7" {
		t.Errorf("slice: got %v, %v, %v", id, sliced, err)
	}
	if id, sliced, err := ParseSliceID(uuidA); err != nil || sliced || id.UUID != uuidA {
		t.Errorf("whole device: got %v, %v, %v", id, sliced, err)
	}
	for _, bad := range []string{"", "::1", uuidA + "::", uuidA + "::-1", uuidA + "::01", uuidA + "::x", uuidA + "::1::2"} {
		if _, _, err := ParseSliceID(bad); err == nil {
			t.Errorf("ParseSliceID(%q) succeeded", bad)
		}
	}
}

func TestReservationsSurviveTheEnvironment(t *testing.T) {
	env := map[string]string{"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/x"}
	want := []Reservation{slicesOf(uuidA, 3, 4, 5), slicesOf(uuidA, 9), slicesOf(uuidB, 0)}
	for _, r := range want {
		value, err := r.EnvValue()
		if err != nil {
			t.Fatal(err)
		}
		env[r.EnvKey()] = value
	}
	if len(env) != 5 {
		t.Fatalf("reservations share a key: %v", env)
	}
	got, err := ReservationsFromEnv(env)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if key := want[0].EnvKey(); key != "NOMAD_GPU_1a2b3c4d_3" {
		t.Errorf("key is %s", key)
	}
}

func TestReservationsRefuseWhatTheyCannotMean(t *testing.T) {
	for value, says := range map[string]string{
		`{`:                      "decode",
		`{"v":2}`:                "version 2",
		`{"v":1}`:                "names no device",
		`{"v":1,"devices":[{}]}`: "no UUID",
		`{"v":1,"devices":[{"uuid":"GPU-1","mode":"slice"}]}`:                            "needs slices",
		`{"v":1,"devices":[{"uuid":"GPU-1","mode":"slice","slices":[1,1],"of":4}]}`:      "ascending",
		`{"v":1,"devices":[{"uuid":"GPU-1","mode":"slice","slices":[4],"of":4}]}`:        "beyond",
		`{"v":1,"devices":[{"uuid":"GPU-1","mode":"half"}]}`:                             "not one of",
		`{"v":1,"devices":[{"uuid":"GPU-1","mode":"whole","slices":[0],"of":1}]}`:        "cannot have slices",
		`{"v":1,"devices":[{"uuid":"G","mode":"slice","slices":[0],"of":4,"milli":-1}]}`: "out of range",
	} {
		_, err := ReservationsFromEnv(map[string]string{"NOMAD_GPU_x_0": value})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "NOMAD_GPU_x_0") {
			t.Errorf("%s: %v, want the key and %q", value, err, says)
		}
	}
}

func TestMergeDevicesAddsUpWhatOneGPUServes(t *testing.T) {
	got, err := MergeDevices([]Reservation{slicesOf(uuidB, 0), slicesOf(uuidA, 9, 10), slicesOf(uuidA, 3)})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].UUID != uuidA || !reflect.DeepEqual(got[0].Slices, []int{3, 9, 10}) || got[0].MemoryMiB != 3072 {
		t.Errorf("got %+v", got)
	}
	compute := func(milli, burst int64, slices ...int) Reservation {
		r := slicesOf(uuidA, slices...)
		r.Devices[0].Milli, r.Devices[0].BurstMilli = milli, burst
		return r
	}
	// The reservations themselves stay as they are: room behind a slice is not the
	// merged device's to write to.
	given := append(make([]int, 0, 8), 5)
	first := compute(100, 900, 5)
	first.Devices[0].Slices = given
	got, err = MergeDevices([]Reservation{first, compute(50, 800, 2), compute(25, 1000, 7)})
	if err != nil || len(got) != 1 || got[0].Milli != 175 || got[0].BurstMilli != 800 {
		t.Errorf("got %+v, %v", got, err)
	}
	if given = given[:3]; !reflect.DeepEqual(given, []int{5, 0, 0}) {
		t.Errorf("the reservation became %v", given)
	}
	if _, err := MergeDevices([]Reservation{slicesOf(uuidA, 3), slicesOf(uuidA, 3)}); err == nil {
		t.Error("the same slice twice was accepted")
	}
}

func TestWholeIsOneInstanceOrAllSlices(t *testing.T) {
	all := ReservedDevice{UUID: uuidA, Mode: ModeSlice, Slices: []int{0, 1}, Of: 2}
	part := ReservedDevice{UUID: uuidA, Mode: ModeSlice, Slices: []int{1}, Of: 2}
	replicas := ReservedDevice{UUID: uuidA, Mode: ModeShared, Slices: []int{0}, Of: 1}
	if !all.Whole() || part.Whole() || replicas.Whole() || !(ReservedDevice{Mode: ModeWhole}).Whole() {
		t.Error("Whole() is wrong")
	}
}

func TestCheckGuarantees(t *testing.T) {
	lease := func(id string, phase Phase, milli int64) Lease {
		return Lease{ID: id, Phase: phase, Holdings: []Holding{{UUID: uuidA, Share: Share{GuaranteeMilli: milli}}}}
	}
	leases := []Lease{lease("a", PhaseRunning, 400), lease("b", PhaseStarting, 300), lease("c", PhaseEnded, 900)}
	if err := CheckGuarantees(lease("d", PhaseStarting, 300), leases); err != nil {
		t.Errorf("exactly full: %v", err)
	}
	err := CheckGuarantees(lease("d", PhaseStarting, 301), leases)
	if err == nil || !strings.Contains(err.Error(), "at most 0.3 (compute = 300 ") || !strings.Contains(err.Error(), uuidA) {
		t.Errorf("one too many: %v", err)
	}
	if err := CheckGuarantees(lease("a", PhaseStarting, 700), leases); err != nil {
		t.Errorf("a task's own lease counted against it: %v", err)
	}
	// All devices of a lease count, and all that are wanted, in any order.
	two := func(id string, a, b int64) Lease {
		l := lease(id, PhaseRunning, a)
		l.Holdings = append(l.Holdings, Holding{UUID: uuidB, Share: Share{GuaranteeMilli: b}})
		return l
	}
	if err := CheckGuarantees(two("d", 100, 301), []Lease{two("a", 100, 700)}); err == nil || !strings.Contains(err.Error(), uuidB) || !strings.Contains(err.Error(), "at most 0.3 (compute = 300 ") {
		t.Errorf("one too many on the second device: %v", err)
	}
	if err := CheckGuarantees(two("d", 900, 300), []Lease{two("a", 100, 700)}); err != nil {
		t.Errorf("exactly full on both: %v", err)
	}
	if err := CheckGuarantees(lease("d", PhaseStarting, 1), []Lease{lease("a", PhaseRunning, 1000)}); err == nil || !strings.Contains(err.Error(), "wait until one of them ends") {
		t.Errorf("on a full device: %v", err)
	}
}

func TestLeaseID(t *testing.T) {
	if got := LeaseID("a1", "web/x y"); got != "a1.web%2Fx%20y" {
		t.Errorf("got %s", got)
	}
	if got := LeaseID("a1", strings.Repeat("長", 80)); len(got) > 60 {
		t.Errorf("a long task name gave %d bytes", len(got))
	}
}

func FuzzParseSliceID(f *testing.F) {
	f.Add(uuidA + "::3")
	f.Fuzz(func(t *testing.T, s string) {
		id, sliced, err := ParseSliceID(s)
		if err == nil && sliced && id.String() != s {
			t.Fatalf("%q became %q", s, id.String())
		}
	})
}

// Keys tell the reservations of a task apart, whatever a vendor calls its devices.
func TestKeysOfDevicesThatBeginAlikeDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, uuid := range []string{
		"GPU-1a2b3c4d-0000-0000-0000-000000000000", "MIG-2a2b3c4d-0000-0000-0000-000000000000", "MIG-GPU-3a2b3c4d-0000-0000-0000-000000000000/1/0",
		"GPU-e3a9a1b2c3d4e5f6", "GPU-e3a9a1b2c3d4e5f6-p0", "GPU-e3a9a1b2c3d4e5f6-p1", "NPU-66802010-20a08b2e", "NPU-66802010-20a08b2f",
	} {
		key := Reservation{Devices: []ReservedDevice{{UUID: uuid}}}.EnvKey()
		if other := seen[key]; other != "" {
			t.Errorf("%s and %s have the key %s", other, uuid, key)
		}
		seen[key] = uuid
	}
	for _, key := range []string{"NOMAD_GPU_1a2b3c4d_0", "NOMAD_GPU_2a2b3c4d_0", "NOMAD_GPU_3a2b3c4d_0"} {
		if seen[key] == "" {
			t.Errorf("no UUID of NVIDIA's gives %s: the keys of allocations that run would change", key)
		}
	}
}
