package main

import (
	"bytes"
	"strings"
	"testing"
)

func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = dispatch(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "Usage: nomad-gpu-scheduler"},
		{[]string{"-help"}, exitOK, "Commands:"},
		{[]string{"nonsense"}, exitUsage, `unknown command "nonsense"`},
		{[]string{"version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"-version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"validate", "service.hcl"}, exitUsage, "For more: nomad-gpu-scheduler validate -help"},
		{[]string{"status", "-address", "gpu.example:4656"}, exitError, `the address "gpu.example:4656" is not a URL; write one such as "http://127.0.0.1:4656"`},
		{[]string{"status", "-address", "unix://run/gpu.sock"}, exitError, `or "unix:///run/gpu.sock"`},
		{[]string{"status", "-address", "unix:///no-such-folder/gpu.sock"}, exitError, "dial unix /no-such-folder/gpu.sock"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

func TestAWrongOptionIsNotHiddenByHelp(t *testing.T) {
	for _, c := range commands {
		code, stdout, stderr := run(c.Name, "-nonsense")
		if want := "flag provided but not defined: -nonsense\nFor more: nomad-gpu-scheduler " + c.Name + " -help\n"; code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q, %q", c.Name, code, stdout, stderr)
		}
	}
}
