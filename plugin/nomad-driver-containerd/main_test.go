package main

import (
	"strings"
	"testing"
)

func TestAnswer(t *testing.T) {
	for _, tc := range []struct {
		arg                 string
		code                int
		says, saysOfTrouble string
	}{
		{"-h", 0, "Usage: nomad-driver-containerd", ""},
		{"--help", 0, "Usage: nomad-driver-containerd", ""},
		{"version", 0, "nomad-driver-containerd 0.", ""},
		{"start", 1, "", `no command "start"`},
	} {
		var out, problems strings.Builder
		code := answer([]string{tc.arg}, &out, &problems)
		if code != tc.code || !strings.Contains(out.String(), tc.says) || !strings.Contains(problems.String(), tc.saysOfTrouble) {
			t.Errorf("%s: exit code %d, %q, %q", tc.arg, code, out.String(), problems.String())
		}
	}
}
