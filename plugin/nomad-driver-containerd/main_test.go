// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	good, bad := filepath.Join(t.TempDir(), "good.hcl"), filepath.Join(t.TempDir(), "bad.hcl")
	for path, text := range map[string]string{good: `plugin "nomad-driver-containerd" {}`, bad: "pids_limit = -1\nmax_starts = -2\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		args         []string
		code         int
		says, errors string
	}{
		{[]string{"-h"}, 0, "Usage: nomad-driver-containerd", ""},
		{[]string{"help"}, 0, "Usage: nomad-driver-containerd", ""},
		{[]string{"version"}, 0, "nomad-driver-containerd 0.", ""},
		{[]string{"validate", good}, 0, "The configuration is valid.", ""},
		{[]string{"validate", bad}, 1, "", "pids_limit: -1"},
		{[]string{"validate", bad}, 1, "", "max_starts: -2"},
		{[]string{"validate"}, 2, "", "takes one argument, not 0: nomad-driver-containerd validate [options] FILE"},
		{[]string{"start"}, 2, "", `unknown command "start"`},
		{nil, 2, "", "Usage: nomad-driver-containerd"},
	} {
		var out, problems strings.Builder
		code := program.Run(tc.args, &out, &problems)
		if code != tc.code || !strings.Contains(out.String(), tc.says) || !strings.Contains(problems.String(), tc.errors) {
			t.Errorf("%q: exit code %d, %q, %q", tc.args, code, out.String(), problems.String())
		}
	}
}
