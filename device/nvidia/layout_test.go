// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// profiles surveys the first GPU's MIG instances, by UUID.
func (r *rig) profiles() map[string]string {
	r.t.Helper()
	m, err := r.Survey()
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]string{}
	for _, i := range m.GPUs[0].Partitions {
		all[i.UUID] = i.Profile
	}
	return all
}

func sizes(all map[string]string) string {
	var names []string
	for _, p := range all {
		names = append(names, p)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestLayout(t *testing.T) {
	for _, tc := range []struct{ model, before, wanted, fails string }{
		{"H100", "", "3g.40gb 2g.20gb 1g.10gb", ""},
		{"H100", "1g.10gb 1g.10gb", "1g.10gb 1g.10gb", ""},
		{"H100", "1g.10gb 1g.10gb 3g.40gb", "7g.80gb", ""},
		{"H100", "7g.80gb", "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb", ""},
		{"A100-40GB", "", "3g.20gb 3g.20gb", ""},
		{"A30", "", "2g.12gb 1g.6gb 1g.6gb", ""},
		{"H100", "1g.10gb", "3g.20gb", `profile "3g.20gb" is not one of`},
		{"H100", "1g.10gb", "7g.80gb 7g.80gb", `2 of profile "7g.80gb" are not valid (at most 1 on this GPU)`},
		{"H100", "1g.10gb", "4g.40gb 3g.40gb 1g.10gb", "no places on this GPU have room for all of them"},
		{"H100", "", "3g.40gb 3g.40gb 1g.10gb", "no places on this GPU"}, // 3 compute slices take 4 of memory
		{"T4", "", "1g.10gb", "has no MIG"},
		// What is wanted and there is in the way of the rest.
		{"A100-40GB", "3g.20gb 3g.20gb", "4g.20gb 3g.20gb", ""},
		{"A100-40GB", "1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", "2g.10gb 2g.10gb 2g.10gb 1g.5gb", ""},
	} {
		t.Run(tc.model+" "+tc.before+" to "+tc.wanted, func(t *testing.T) {
			before, there := strings.Fields(tc.before), ""
			if tc.before != "" {
				there = "mig = [\"" + strings.Join(before, `", "`) + "\"]"
			}
			r := newRig(t, "gpu {\n model = \""+tc.model+"\"\n "+there+"\n}")
			wanted := strings.Fields(tc.wanted)
			err := r.Layout(r.uuid(0), wanted)
			slices.Sort(wanted)
			if tc.fails != "" {
				slices.Sort(before)
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("got %v, want %q", err, tc.fails)
				}
				if got := sizes(r.profiles()); got != strings.Join(before, " ") {
					t.Errorf("after the failure there is %q, before there was %q", got, tc.before)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			after := r.profiles()
			if got := sizes(after); got != strings.Join(wanted, " ") {
				t.Errorf("got %q, want %q", got, tc.wanted)
			}
			if err := r.Layout(r.uuid(0), wanted); err != nil {
				t.Errorf("a second time: %v", err)
			}
			for uuid := range r.profiles() {
				if after[uuid] == "" {
					t.Error("a second time made other instances")
				}
			}
		})
	}
}

func TestLayoutKeepsWhatIsWanted(t *testing.T) {
	r := newRig(t, "gpu {\n model = \"H100\"\n mig = [\"3g.40gb\", \"1g.10gb\"]\n}")
	before := r.profiles()
	if err := r.Layout(r.uuid(0), []string{"3g.40gb", "2g.20gb"}); err != nil {
		t.Fatal(err)
	}
	for uuid, profile := range r.profiles() {
		if profile == "3g.40gb" && before[uuid] != profile {
			t.Error("the instance that was wanted already was made anew")
		}
	}
}

func TestLayoutNeverTouchesAnInstanceInUse(t *testing.T) {
	r := newRig(t, "gpu {\n model = \"H100\"\n mig = [\"3g.40gb\", \"1g.10gb\"]\n}")
	before := r.profiles()
	for uuid, profile := range before {
		if profile == "1g.10gb" {
			r.happen(0, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1, Instance: uuid}} })
		}
	}
	if err := r.Layout(r.uuid(0), []string{"7g.80gb"}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
	after := r.profiles()
	if sizes(after) != sizes(before) {
		t.Errorf("there is %q, there was %q", sizes(after), sizes(before))
	}
}

func TestLayoutFailureRestores(t *testing.T) {
	for _, call := range []string{"CreateGpuInstance", "CreateComputeInstance", "GpuInstanceDestroy", "ComputeInstanceDestroy", "SetMigMode"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, "gpu {\n model = \"H100\"\n mig = [\"1g.10gb\"]\n}")
			before := r.profiles()
			r.happen(0, func(c *sim.Condition) { c.Errors = map[string]int{call: int(nvml.ERROR_UNKNOWN)} })
			err := r.Layout(r.uuid(0), []string{"1g.10gb", "2g.20gb"})
			if strings.HasPrefix(call, "Create") == (err == nil) {
				t.Errorf("got %v", err)
			}
			r.happen(0, func(c *sim.Condition) { c.Errors = nil })
			for uuid := range before {
				if r.profiles()[uuid] == "" {
					t.Error("the former instance is gone")
				}
			}
		})
	}
}
