// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

// run runs the command line and returns its exit code and output.
func run(args ...string) (int, string, string) {
	var out, problems bytes.Buffer
	code := program.Run(args, &out, &problems)
	return code, out.String(), problems.String()
}

// configFile writes a configuration on simulated GPUs.
func configFile(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "") // the path of a socket below it has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	topology, err := filepath.Abs("../../e2e/topology/mixed.hcl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.hcl")
	text += `
		state_dir = "` + dir + `/run"
		data_dir  = "` + dir + `/data"
		simulation {
			topology = "` + topology + `"
			dir      = "` + dir + `/sim"
		}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const mixed = `
gpu {
	model = "V100"
	mode  = "slice"
}
gpu {
	model = "A100"
	mode  = "mig"
	mig {
		mode = "slice"
	}
}
gpu {
	model     = "H100"
	mode      = "shared"
	timeslice = "short"
}
gpu {
	index = 77
}`

func TestInventory(t *testing.T) {
	path := configFile(t, mixed)
	for name, args := range map[string][]string{
		"inventory.txt":  {"inventory", "-verbose", path},
		"inventory.json": {"inventory", "--json", path},
	} {
		code, out, problems := run(args...)
		if code != 0 {
			t.Errorf("%v: exit code %d, %s", args, code, problems)
		}
		golden.Compare(t, name, out)
		if name == "inventory.txt" && !strings.Contains(problems, "Warning: gpu[3] selects no GPU") {
			t.Errorf("warnings are %q", problems)
		}
	}
}

func TestValidate(t *testing.T) {
	if code, out, problems := run("validate", configFile(t, mixed)); code != 0 || !strings.Contains(out, "is valid") || !strings.Contains(problems, "gpu[3]") {
		t.Errorf("valid: %d, %q, %q", code, out, problems)
	}
	if code, _, problems := run("validate", configFile(t, "replicas = 0\n")); code != 1 || !strings.Contains(problems, "replicas 0 is not a number from 1 to 1000") {
		t.Errorf("invalid: %d, %q", code, problems)
	}
	if code, _, problems := run("validate", "/nonexistent.hcl"); code != 1 || problems == "" {
		t.Errorf("absent: %d, %q", code, problems)
	}
}

func TestCordonAndUncordon(t *testing.T) {
	path := configFile(t, mixed)
	dataDir := "-data-dir=" + filepath.Join(filepath.Dir(path), "data")
	const uuid = "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c"
	writeLedger(t, filepath.Join(filepath.Dir(path), "data"), uuid)
	if code, out, _ := run("cordon", dataDir, "-reason", "new fan", uuid); code != 0 || out != uuid+" is cordoned.\n" {
		t.Errorf("cordon: %d, %q", code, out)
	}
	if _, out, _ := run("inventory", path); !strings.Contains(out, uuid+": cordoned: new fan") || !strings.Contains(out, "0 of 4") {
		t.Errorf("inventory:\n%s", out)
	}
	if code, out, _ := run("uncordon", dataDir, uuid); code != 0 || out != uuid+" is uncordoned.\n" {
		t.Errorf("uncordon: %d, %q", code, out)
	}
	if _, out, _ := run("inventory", path); strings.Contains(out, "cordoned") {
		t.Errorf("inventory:\n%s", out)
	}
}

// writeLedger leaves what a plugin that has seen a device leaves.
func writeLedger(t *testing.T, dataDir, uuid string) {
	t.Helper()
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"version": 1, "devices": {"` + uuid + `": {"index": 2, "offer": {}}}}`
	if err := os.WriteFile(filepath.Join(dataDir, "devices.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What status and Nomad show of a UUID is enough, as it is for Nomad's own commands.
func TestTheBeginningOfAUUIDIsEnough(t *testing.T) {
	dataDir := t.TempDir()
	const one, other = "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c", "GPU-a9700000-a4f8-0c0c-665d-78e2a99ea69c"
	text := `{"version": 1, "devices": {"` + one + `": {"index": 0, "offer": {}}, "` + other + `": {"index": 1, "offer": {}}}}`
	if err := os.WriteFile(filepath.Join(dataDir, "devices.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		given string
		code  int
		says  string
	}{
		{"GPU-a969", 0, one + " is cordoned.\n"},
		{"GPU-a9", 1, `"GPU-a9" is not one device: ` + one + ", " + other + " begin with it"},
		{"GPU-b", 1, `"GPU-b" is not known in ` + dataDir},
		{"a969", 1, `"a969" is not the UUID of a GPU or MIG instance`},
	} {
		if code, out, problems := run("cordon", "-data-dir", dataDir, tc.given); code != tc.code || !strings.Contains(out+problems, tc.says) {
			t.Errorf("%s: %d, %q, %q; want %q", tc.given, code, out, problems, tc.says)
		}
	}
	if cordons := registry.OpenCordons(dataDir); !cordons.Has(one) || cordons.Has(other) {
		t.Error("another device is cordoned")
	}
}

func TestCordonRefusesWhatThePluginDoesNotKnow(t *testing.T) {
	dataDir := t.TempDir()
	const known, unknown = "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c", "GPU-00000000-a4f8-0c0c-665d-78e2a99ea69c"
	for _, says := range []string{
		"no plugin has run with the data directory " + dataDir + ": it has no devices.json; write -data-dir=DIR",
		`"` + unknown + `" is not known in ` + dataDir + "; known are " + known,
	} {
		for _, command := range []string{"cordon", "uncordon", "forget"} {
			if code, out, problems := run(command, "-data-dir", dataDir, unknown); code != 1 || out != "" || !strings.Contains(problems, says) {
				t.Errorf("%s: exit code %d, %q, %q; want %q", command, code, out, problems, says)
			}
		}
		writeLedger(t, dataDir, known)
	}
	if _, err := os.Stat(filepath.Join(dataDir, "cordons")); err == nil {
		t.Error("a refused cordon was written")
	}
}

// A cordon may be left of a GPU that was forgotten since, or copied from another
// machine: it can be ended all the same.
func TestUncordonEndsWhatIsThere(t *testing.T) {
	dataDir := t.TempDir()
	const gone = "GPU-00000000-a4f8-0c0c-665d-78e2a99ea69c"
	writeLedger(t, dataDir, "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c")
	if err := registry.OpenCordons(dataDir).Add(gone, "new fan"); err != nil {
		t.Fatal(err)
	}
	if code, out, problems := run("uncordon", "-data-dir", dataDir, gone); code != 0 || out != gone+" is uncordoned.\n" {
		t.Errorf("%d, %q, %q", code, out, problems)
	}
	if registry.OpenCordons(dataDir).Has(gone) {
		t.Error("it is still cordoned")
	}
	if code, _, problems := run("uncordon", "-data-dir", dataDir, gone); code != 1 || !strings.Contains(problems, "is not known") {
		t.Errorf("a second time: %d, %q", code, problems)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"validate"}, command.ExitUsage, "this command takes one argument, not 0"},
		{[]string{"inventory", "a", "b"}, command.ExitUsage, "this command takes 0 to 1 arguments, not 2"},
		{[]string{"inventory", "-yaml"}, command.ExitUsage, "flag provided but not defined: -yaml"},
		{[]string{"cordn", "GPU-1"}, command.ExitUsage, `unknown command "cordn"`},
		{[]string{"cordon", "0"}, command.ExitError, `"0" is not the UUID of a GPU or MIG instance`},
		{[]string{"forget", "GPU-../x"}, command.ExitError, `is not the UUID`},
	} {
		if code, _, problems := run(tc.args...); code != tc.code || !strings.Contains(problems, tc.says) {
			t.Errorf("%v: exit code %d, %q; want %q", tc.args, code, problems, tc.says)
		}
	}
}

func TestAFileThatCannotBeReadIsNamedWithTheReason(t *testing.T) {
	for _, command := range []string{"validate", "inventory"} {
		says := "read configuration: stat no-such-file: no such file or directory"
		if code, _, problems := run(command, "no-such-file"); code != 1 || !strings.Contains(problems, says) {
			t.Errorf("%s: exit code %d, %q; want %q", command, code, problems, says)
		}
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := run("version"); code != 0 || !strings.HasPrefix(out, "nomad-device-gpu ") {
		t.Errorf("%d, %q", code, out)
	}
}

// A UUID is long: what the plugin knows of is completed, and for uncordon what is
// cordoned.
func TestDevicesAreCompleted(t *testing.T) {
	dataDir := t.TempDir()
	const known, gone = "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c", "GPU-00000000-a4f8-0c0c-665d-78e2a99ea69c"
	line := complete.Args{Completed: []string{"-data-dir", dataDir}}
	if got := devicesHere.Predict(line); len(got) != 0 {
		t.Errorf("no plugin has run, and %q is offered", got)
	}
	writeLedger(t, dataDir, known)
	if err := registry.OpenCordons(dataDir).Add(gone, "new fan"); err != nil {
		t.Fatal(err)
	}
	for _, c := range program.Commands {
		want := map[string][]string{"cordon": {gone, known}, "release": {gone, known}, "forget": {gone, known}, "uncordon": {gone}}[c.Name]
		if want == nil {
			continue
		}
		if got := c.Arguments.Predict(line); !slices.Equal(got, want) {
			t.Errorf("%s is completed with %q, want %q", c.Name, got, want)
		}
	}
}
