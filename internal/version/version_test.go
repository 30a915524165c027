// SPDX-License-Identifier: MPL-2.0

package version

import (
	"os/exec"
	"path"
	"strings"
	"testing"

	goversion "github.com/hashicorp/go-version"
)

func TestWhatGoKnowsIsAVersionForNomad(t *testing.T) {
	for module, want := range map[string]string{
		"v1.2.3": "1.2.3",
		"v0.0.0-20261121222258-bf737370d5e9+dirty": "0.0.0-20261121222258-bf737370d5e9+dirty",
		"(devel)": unknown,
		"":        unknown,
	} {
		got := ofModule(module)
		if _, err := goversion.NewVersion(got); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", module, got, err, want)
		}
	}
}

// The build names a variable of this package in a string, which no compiler checks.
func TestTheBuildSetsTheVersionOfEveryProgram(t *testing.T) {
	plan, err := exec.Command("make", "--no-print-directory", "-n", "-C", "../..", "build", "VERSION=9.8.7").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"plugin/nomad-device-gpu", "plugin/nomad-driver-containerd", "scheduler/cmd/nomad-gpu-scheduler", "cmd/gpu-sim"} {
		t.Run(path.Base(program), func(t *testing.T) {
			if out, err := exec.Command("go", "run", "-ldflags", linkerFlags(string(plan), program), "./testdata/print").Output(); err != nil || string(out) != "9.8.7" {
				t.Errorf("it says %q, %v; built by\n%s", out, err, plan)
			}
		})
	}
}

// Containers and CI export VERSION for purposes of their own.
func TestTheVersionIsNotTakenFromTheEnvironment(t *testing.T) {
	build := exec.Command("make", "--no-print-directory", "-n", "-C", "../..", "build")
	build.Env = append(build.Environ(), "VERSION=main")
	plan, err := build.Output()
	if err != nil || strings.Contains(string(plan), "version.release=main") || !strings.Contains(string(plan), "version.release=") {
		t.Errorf("%v; make would run\n%s", err, plan)
	}
}

// linkerFlags are those that make would build a program with.
func linkerFlags(plan, program string) string {
	for line := range strings.Lines(plan) {
		if strings.Contains(line, "./"+program) {
			_, rest, _ := strings.Cut(line, "-ldflags '")
			flags, _, _ := strings.Cut(rest, "'")
			return flags
		}
	}
	return ""
}

// A release between two that tests ran on counts as one of them; a newer or older one does not.
func TestReleasesOfNomadThatWereTested(t *testing.T) {
	for _, tc := range []struct {
		release string
		want    bool
	}{
		{OldestNomad, true}, {NewestNomad, true}, {NewestNomad + "+ent", true}, {OldestNomad + "-dev", true},
		{"1.11.2", false}, {"1.9.99", false}, {"99.0.0", false}, {"", false}, {"dev", false},
	} {
		if got := WasTested(tc.release); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.release, got, tc.want)
		}
	}
}
