// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scheduler runs nomad-gpu-scheduler in a home of its own.
func scheduler(ctx context.Context, t *testing.T, home, address string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "NOMAD_GPU_ADDR="+address)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errors.String()
}

// TestCommand uses the command line as a person does, against a running service
// and without one.
func TestCommand(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	home := t.TempDir()
	file := filepath.Join(home, "sleeper.hcl")
	write(t, file, sleeper)
	impossible := filepath.Join(home, "impossible.hcl")
	write(t, impossible, strings.Replace(sleeper, "4G,0.25", "9", 1))
	for _, row := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"plan", file}, 0, "node-0", ""},
		{[]string{"run", file}, 0, `Job "team/sleeper" is submitted`, ""},
		{[]string{"plan", file}, 0, "nothing changes", ""},
		{[]string{"run", impossible}, 1, "", "no node can ever hold"},
		{[]string{"run", "-check-index", "0", file}, 1, "", "job modify index"},
		{[]string{"explain", "team/sleeper"}, 0, "node-0", ""},
		{[]string{"explain", "nobody"}, 1, "", "nobody"},
		{[]string{"status"}, 0, "nvidia/slice/T4/0", ""},
		{[]string{"status", "-address", "http://127.0.0.1:1"}, 1, "", "NOMAD_GPU_ADDR"},
		{[]string{"run"}, 2, "", "takes one argument"},
		{[]string{"run", "-help"}, 0, "Usage: nomad-gpu-scheduler run [options] <job file>", ""},
		{[]string{"validate", r.config}, 0, "is valid", ""},
		{[]string{"validate", file}, 1, "", "job"},
		{[]string{"version"}, 0, "nomad-gpu-scheduler", ""},
	} {
		code, stdout, stderr := scheduler(ctx, t, home, r.URL, row.args...)
		if code != row.code || !strings.Contains(stdout, row.stdout) || !strings.Contains(stderr, row.stderr) || (stderr == "") != (row.stderr == "") {
			t.Errorf("%q: exit %d, want %d\n%s%s", row.args, code, row.code, stdout, stderr)
		}
	}
	runs(ctx, t, c.API, "team/sleeper", 1)
	for _, args := range [][]string{{"status", "-json"}, {"plan", "-json", file}, {"explain", "-json", "team/sleeper"}, {"run", "-json", file}} {
		code, stdout, stderr := scheduler(ctx, t, home, r.URL, args...)
		if code != 0 || !json.Valid([]byte(stdout)) {
			t.Errorf("%q: exit %d, no JSON:\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestCompletionIsInstalled writes into the shell's file of a new home, and takes
// it out again, without a question. The home is that of /etc/passwd, so the
// program gets one of its own.
func TestCompletionIsInstalled(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file, passwd := filepath.Join(home, ".bashrc"), filepath.Join(home, "passwd")
	const before = "alias ll='ls -l'\n"
	write(t, file, before)
	write(t, passwd, "root:x:0:0:root:"+home+":/bin/bash\n")
	for _, row := range []struct {
		option string
		holds  bool
	}{{"-autocomplete-install", true}, {"-autocomplete-uninstall", false}} {
		out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
			`mount --bind "$1" /etc/passwd && exec "$2" "$3"`, "sh", passwd, program, row.option).CombinedOutput()
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err != nil || strings.Contains(string(text), "complete -C "+program) != row.holds || !strings.HasPrefix(string(text), before) {
			t.Errorf("%s: %v %s; the file is:\n%s", row.option, err, out, text)
		}
	}
}
