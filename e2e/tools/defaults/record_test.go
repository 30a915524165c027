package defaults

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/docker/docker/oci"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the record anew")

// record is the file that the driver's tests read.
var record = filepath.Join("..", "..", "..", "driver", "spec", "testdata", "docker-defaults.json")

// TestRecord holds the record against Docker's code of the version in go.mod.
func TestRecord(t *testing.T) {
	spec := oci.DefaultLinuxSpec()
	profile, err := seccomp.GetDefaultProfile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	// Those of sysfs lie there as many times as the machine has CPUs.
	masked := slices.DeleteFunc(spec.Linux.MaskedPaths, func(path string) bool { return filepath.Dir(filepath.Dir(path)) == "/sys/devices/system/cpu" })
	got, err := json.MarshalIndent(map[string]any{
		"version":      "Docker 28.5.2",
		"capabilities": spec.Process.Capabilities.Bounding,
		"masked":       masked,
		"readonly":     spec.Linux.ReadonlyPaths,
		"mounts":       spec.Mounts,
		"devices":      spec.Linux.Resources.Devices,
		"seccomp":      syscalls(profile),
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(record, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what Docker's code says; run with -update", record)
	}
}

// syscalls are the system calls that a profile allows: at all, and only with
// certain arguments.
func syscalls(profile *specs.LinuxSeccomp) map[string][]string {
	allowed := map[string][]string{}
	for _, rule := range profile.Syscalls {
		kind := "always"
		if len(rule.Args) > 0 {
			kind = "with arguments"
		}
		if rule.Action == specs.ActAllow {
			allowed[kind] = append(allowed[kind], rule.Names...)
		}
	}
	for kind := range allowed {
		slices.Sort(allowed[kind])
		allowed[kind] = slices.Compact(allowed[kind])
	}
	return allowed
}
