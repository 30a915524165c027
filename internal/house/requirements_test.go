// SPDX-License-Identifier: MPL-2.0

package house

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// testOnly are required modules that no program contains.
var testOnly = map[string]string{
	"rsc.io/script":      "it reads the scripts of scheduler/reconcile; it needs golang.org/x/tools alone",
	"go.uber.org/goleak": "tests inside nearly every package ask it whether a goroutine was left behind; it needs nothing itself",
}

// What only tests need is a module of its own, or is required for a reason: whoever
// packages the programs loads and reviews what go.mod asks for.
func TestRequirementsAreOfPrograms(t *testing.T) {
	inside := map[string]bool{}
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./plugin/...", "./scheduler/cmd/...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list what the programs are made of: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		inside[path] = true
	}
	for _, path := range required(t) {
		if _, ok := testOnly[path]; ok == inside[path] {
			t.Errorf("go.mod requires %s, which programs contain: %v, and which is listed as needed by tests alone: %v", path, inside[path], ok)
		}
	}
	for path := range testOnly {
		if !slices.Contains(required(t), path) {
			t.Errorf("%s is listed as needed by tests, and go.mod does not require it", path)
		}
	}
}

// required are the modules that our own sources import.
func required(t *testing.T) (paths []string) {
	t.Helper()
	edit := exec.Command("go", "mod", "edit", "-json")
	edit.Dir = root
	out, err := edit.Output()
	if err != nil {
		t.Fatalf("read go.mod: %v", err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		if !r.Indirect {
			paths = append(paths, r.Path)
		}
	}
	return paths
}
