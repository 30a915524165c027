// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The owner's names stand in one file: examples have the same, and a workflow cannot publish
// while they are not set.
func TestOwnersNamesStandInOnePlace(t *testing.T) {
	root := filepath.Join("..", "..")
	if !strings.Contains(maintainer, "@") || !strings.HasPrefix(owned("URL"), "https://") {
		t.Errorf("maintainer %q, URL %q", maintainer, owned("URL"))
	}
	for _, file := range []string{"examples/deploy/terraform/client.tf", "examples/deploy/ansible/roles/nomad_gpu_client/defaults/main.yml"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !strings.Contains(string(text), owned("URL")) {
			t.Errorf("%s does not name %s: %v", file, owned("URL"), err)
		}
	}
	out, err := exec.Command("make", "-s", "-C", root, "release-owner").CombinedOutput()
	if unset := strings.Contains(maintainer+owned("URL"), ".invalid"); unset != (err != nil) || unset != strings.Contains(string(out), "internal/release/owner") {
		t.Errorf("make release-owner: %v: %s", err, out)
	}
	workflow, err := os.ReadFile(filepath.Join(root, ".github", "workflows", "release.yml"))
	if err != nil || !strings.Contains(string(workflow), "make release-owner\n") || strings.Index(string(workflow), "release-owner") > strings.Index(string(workflow), "make release\n") {
		t.Errorf("the workflow publishes whatever the names are: %v", err)
	}
}
