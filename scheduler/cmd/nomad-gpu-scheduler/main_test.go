package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
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
		{[]string{"simulate", "-help"}, exitOK, "-arrivals"},
		{[]string{"simulate", "-nonsense"}, exitUsage, "not defined"},
		{[]string{"simulate", "extra"}, exitUsage, `unexpected argument "extra"`},
		{[]string{"simulate", "-nodes", "x"}, exitUsage, "go together"},
		{[]string{"simulate", "-nodes", "no-such-file", "-arrivals", "x"}, exitError, "no-such-file"},
		{[]string{"simulate", "-policy", "BEST"}, exitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"generate"}, exitUsage, "-out is required"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

func TestGenerateThenSimulate(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run("generate", "-out", dir, "-count", "20"); code != exitOK {
		t.Fatal(stderr)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	code, stdout, stderr := run("simulate", "-nodes", file("nodes.csv"), "-arrivals", file("arrivals.csv"),
		"-history", file("history.csv"), "-policy", "BALANCED,fgd", "-out", file("placed.csv"), "-plot", file("plot.svg"), "-json")
	if code != exitOK {
		t.Fatal(stderr)
	}
	var reports []report
	if err := json.Unmarshal([]byte(stdout), &reports); err != nil || len(reports) != 2 || reports[0].At100 <= 0 {
		t.Fatalf("%s: %v", stdout, err)
	}
	for _, name := range []string{"placed-BALANCED.csv", "placed-fgd.csv", "plot.svg"} {
		if data, err := os.ReadFile(file(name)); err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

func TestSimulateLive(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run("generate", "-out", dir, "-count", "5", "-demand", "300", "-live"); code != exitOK {
		t.Fatal(stderr)
	}
	code, stdout, stderr := run("simulate", "-live", "-nodes", filepath.Join(dir, "nodes.csv"), "-arrivals", filepath.Join(dir, "arrivals.csv"))
	if code != exitOK || !strings.Contains(stdout, "fairness") || !strings.Contains(stdout, "team-1") {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
}
