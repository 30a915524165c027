package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
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
		{[]string{"simulate", "-order", "x"}, exitUsage, `-order "x" goes with -nodes and -arrivals`},
		{[]string{"simulate", "-quotas", "x"}, exitUsage, `-quotas "x" goes with -live`},
		{[]string{"simulate", "-nodes", "no-such-file", "-arrivals", "x"}, exitError, "no-such-file"},
		{[]string{"simulate", "-from", "x"}, exitUsage, "-from needs -nodes"},
		{[]string{"simulate", "-from", "x", "-nodes", "x", "-order", "x"}, exitUsage, "-order does not go with -from"},
		{[]string{"simulate", "-from", "x", "-nodes", "x", "-live"}, exitUsage, "-live does not go with -from"},
		{[]string{"simulate", "-from", "x", "-nodes", "no-such-file"}, exitError, "no-such-file"},
		{[]string{"simulate", "-shared", "40"}, exitUsage, "-shared goes with -from"},
		{[]string{"simulate", "-nodes", "x", "-arrivals", "x", "-models", "40"}, exitUsage, "-models goes with -from"},
		{[]string{"simulate", "-demand", "0"}, exitUsage, "-demand 0: want 1 to 10000"},
		{[]string{"simulate", "-shared", "140"}, exitUsage, `invalid value "140" for flag -shared: want a number from 0 to 100`},
		{[]string{"simulate", "-policy", "BEST"}, exitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"-version"}, exitOK, "nomad-gpu-scheduler "},
		{[]string{"validate", "service.hcl"}, exitUsage, "For more: nomad-gpu-scheduler validate -help"},
		{[]string{"status", "-address", "gpu.example:4656"}, exitError, `the address "gpu.example:4656" is not a URL; write one such as "http://127.0.0.1:4656"`},
		{[]string{"status", "-address", "unix://run/gpu.sock"}, exitError, `or "unix:///run/gpu.sock"`},
		{[]string{"status", "-address", "unix:///no-such-folder/gpu.sock"}, exitError, "dial unix /no-such-folder/gpu.sock"},
		{[]string{"generate"}, exitUsage, "-out is required"},
		{[]string{"generate", "-out", "x", "-count", "0"}, exitUsage, "-count 0: want 1 or more"},
		{[]string{"generate", "-out", "x", "-live", "-teams", "-1"}, exitUsage, "-teams -1: want 0 or more"},
		{[]string{"generate", "-out", "x", "-live", "-load", "0"}, exitUsage, "-load 0: want 1 or more"},
		{[]string{"generate", "-out", "x", "-teams", "2"}, exitUsage, "-teams goes with -live"},
		{[]string{"generate", "-out", "x", "-multi", "many"}, exitUsage, `invalid value "many" for flag -multi: want a number from 0 to 100`},
		{[]string{"generate", "-out", "x", "-cpu-only", "NaN"}, exitUsage, `invalid value "NaN" for flag -cpu-only`},
		{[]string{"generate", "-out", "x", "-nodes", "x"}, exitUsage, "-nodes goes with -from"},
		{[]string{"generate", "-out", "x", "-nodes", "x", "-from", "x", "-teams", "2"}, exitUsage, "-teams does not go with -from"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

func TestAWrongOptionIsNotHiddenByHelp(t *testing.T) {
	for _, c := range commands {
		code, stdout, stderr := run(c.name, "-nonsense")
		if want := "flag provided but not defined: -nonsense\nFor more: nomad-gpu-scheduler " + c.name + " -help\n"; code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q, %q", c.name, code, stdout, stderr)
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

// A workload drawn by generate is the one that simulate draws by itself.
func TestWorkloadsAreDrawnFromATrace(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if code, _, stderr := run("generate", "-out", file("trace"), "-count", "20", "-seed", "5"); code != exitOK {
		t.Fatal(stderr)
	}
	draw := []string{"-nodes", file("trace/nodes.csv"), "-from", file("trace/history.csv"), "-seed", "7", "-demand", "120",
		"-shared", "40", "-multi", "20", "-models", "33", "-cpu-only", "5"}
	if code, _, stderr := run(append([]string{"generate", "-out", file("drawn")}, draw...)...); code != exitOK {
		t.Fatal(stderr)
	}
	written := []string{"-nodes", file("drawn/nodes.csv"), "-arrivals", file("drawn/arrivals.csv"), "-history", file("drawn/history.csv")}
	for out, workload := range map[string][]string{"a": draw, "b": written} {
		args := append([]string{"simulate", "-policy", "BALANCED,fgd", "-out", file(out + ".csv")}, workload...)
		if code, _, stderr := run(args...); code != exitOK {
			t.Fatal(stderr)
		}
	}
	for _, policy := range []string{"BALANCED", "fgd"} {
		a, errA := os.ReadFile(file("a-" + policy + ".csv"))
		b, errB := os.ReadFile(file("b-" + policy + ".csv"))
		if errA != nil || errB != nil || len(a) == 0 || !bytes.Equal(a, b) {
			t.Errorf("%s places the drawn and the written workload otherwise: %v %v", policy, errA, errB)
		}
	}
	code, _, stderr := run("simulate", "-nodes", file("trace/nodes.csv"), "-from", file("trace/history.csv"), "-shared", "60", "-multi", "60")
	if code != exitError || !strings.Contains(stderr, "history.csv") || !strings.Contains(stderr, "want 100 at most together") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestWhatWasNotReachedIsNotZero(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// Three GPUs: 33, 67 and then 133 percent arrive.
	small := []string{
		"-nodes", file("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,3,T4\n"),
		"-arrivals", file("arrivals.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,1000\nb,1000,1024,1,1000\nc,1000,1024,2,1000\n"),
		"-plot", filepath.Join(dir, "plot.svg"),
	}
	for _, c := range []struct {
		name        string
		args        []string
		table, json string
	}{
		{"less than 130 percent arrive", []string{"-demand", "110"}, `bestfit +\d+\.\d\d +- `, `"allocated_percent_at_130": null`},
		{"percentages are skipped", small, `bestfit +66\.67 +66\.67 +66\.67 `, `"allocated_percent_at_130": 66.67`},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"simulate", "-policy", "bestfit"}, c.args...)
			if code, stdout, stderr := run(args...); code != exitOK || !regexp.MustCompile(c.table).MatchString(stdout) {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
			if code, stdout, stderr := run(append(args, "-json")...); code != exitOK || !strings.Contains(stdout, c.json) {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
		})
	}
	if picture, err := os.ReadFile(filepath.Join(dir, "plot.svg")); err != nil || !strings.Contains(string(picture), "while the cluster fills up") {
		t.Errorf("the plot lacks the closer look: %v", err)
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
