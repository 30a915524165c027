package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
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
		{nil, cli.ExitUsage, "Usage: gpu-sim"},
		{[]string{"version"}, cli.ExitOK, "gpu-sim "},
		{[]string{"simulate", "-help"}, cli.ExitOK, "-arrivals"},
		{[]string{"simulate", "-nonsense"}, cli.ExitUsage, "not defined"},
		{[]string{"simulate", "extra"}, cli.ExitUsage, `unexpected argument "extra"`},
		{[]string{"simulate", "-nodes", "x"}, cli.ExitUsage, "go together"},
		{[]string{"simulate", "-order", "x"}, cli.ExitUsage, `-order "x" goes with -nodes and -arrivals`},
		{[]string{"replay", "-quotas", "x"}, cli.ExitUsage, `-quotas "x" goes with -queue`},
		{[]string{"replay", "-nodes", "x"}, cli.ExitUsage, "go together"},
		{[]string{"replay", "-nodes", "x", "-arrivals", "x", "-load", "90"}, cli.ExitUsage, "-load does not go with -arrivals"},
		{[]string{"replay", "-hours", "3"}, cli.ExitUsage, "-hours goes with -from"},
		{[]string{"replay", "-from", "x", "-nodes", "x", "-wave", "2"}, cli.ExitUsage, "-wave 2: want 0 to 1"},
		{[]string{"replay", "-policy", "BEST"}, cli.ExitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"simulate", "-nodes", "no-such-file", "-arrivals", "x"}, cli.ExitError, "no-such-file"},
		{[]string{"simulate", "-from", "x"}, cli.ExitUsage, "-from needs -nodes"},
		{[]string{"simulate", "-from", "x", "-nodes", "x", "-order", "x"}, cli.ExitUsage, "-order does not go with -from"},
		{[]string{"simulate", "-from", "x", "-nodes", "no-such-file"}, cli.ExitError, "no-such-file"},
		{[]string{"simulate", "-shared", "40"}, cli.ExitUsage, "-shared goes with -from"},
		{[]string{"simulate", "-nodes", "x", "-arrivals", "x", "-models", "40"}, cli.ExitUsage, "-models goes with -from"},
		{[]string{"simulate", "-demand", "0"}, cli.ExitUsage, "-demand 0: want 1 to 10000"},
		{[]string{"simulate", "-shared", "140"}, cli.ExitUsage, `invalid value "140" for flag -shared: want a number from 0 to 100`},
		{[]string{"simulate", "-policy", "BEST"}, cli.ExitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"generate"}, cli.ExitUsage, "-out is required"},
		{[]string{"generate", "-out", "x", "-count", "0"}, cli.ExitUsage, "-count 0: want 1 or more"},
		{[]string{"generate", "-out", "x", "-live", "-teams", "-1"}, cli.ExitUsage, "-teams -1: want 0 or more"},
		{[]string{"generate", "-out", "x", "-live", "-load", "0"}, cli.ExitUsage, "-load 0: want 1 to 10000"},
		{[]string{"generate", "-out", "x", "-teams", "2"}, cli.ExitUsage, "-teams goes with -live"},
		{[]string{"generate", "-out", "x", "-multi", "many"}, cli.ExitUsage, `invalid value "many" for flag -multi: want a number from 0 to 100`},
		{[]string{"generate", "-out", "x", "-cpu-only", "NaN"}, cli.ExitUsage, `invalid value "NaN" for flag -cpu-only`},
		{[]string{"generate", "-out", "x", "-nodes", "x"}, cli.ExitUsage, "-nodes goes with -from"},
		{[]string{"generate", "-out", "x", "-nodes", "x", "-from", "x", "-teams", "2"}, cli.ExitUsage, "-teams does not go with -from"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

func TestGenerateThenSimulate(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run("generate", "-out", dir, "-count", "20"); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	code, stdout, stderr := run("simulate", "-nodes", file("nodes.csv"), "-arrivals", file("arrivals.csv"),
		"-history", file("history.csv"), "-policy", "BALANCED,fgd", "-out", file("placed.csv"), "-plot", file("plot.svg"), "-json")
	if code != cli.ExitOK {
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
	if code, _, stderr := run("generate", "-out", file("trace"), "-count", "20", "-seed", "5"); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	draw := []string{"-nodes", file("trace/nodes.csv"), "-from", file("trace/history.csv"), "-seed", "7", "-demand", "120",
		"-shared", "40", "-multi", "20", "-models", "33", "-cpu-only", "5"}
	if code, _, stderr := run(append([]string{"generate", "-out", file("drawn")}, draw...)...); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	written := []string{"-nodes", file("drawn/nodes.csv"), "-arrivals", file("drawn/arrivals.csv"), "-history", file("drawn/history.csv")}
	for out, workload := range map[string][]string{"a": draw, "b": written} {
		args := append([]string{"simulate", "-policy", "BALANCED,fgd", "-out", file(out + ".csv")}, workload...)
		if code, _, stderr := run(args...); code != cli.ExitOK {
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
	if code != cli.ExitError || !strings.Contains(stderr, "history.csv") || !strings.Contains(stderr, "want 100 at most together") {
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
			if code, stdout, stderr := run(args...); code != cli.ExitOK || !regexp.MustCompile(c.table).MatchString(stdout) {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
			if code, stdout, stderr := run(append(args, "-json")...); code != cli.ExitOK || !strings.Contains(stdout, c.json) {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
		})
	}
	if picture, err := os.ReadFile(filepath.Join(dir, "plot.svg")); err != nil || !strings.Contains(string(picture), "while the cluster fills up") {
		t.Errorf("the plot lacks the closer look: %v", err)
	}
}

func TestGenerateThenReplay(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if code, _, stderr := run("generate", "-out", dir, "-count", "5", "-demand", "300", "-live"); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	workload := []string{"replay", "-nodes", file("nodes.csv"), "-arrivals", file("arrivals.csv"), "-history", file("history.csv")}
	code, stdout, stderr := run(append(workload, "-queue", "-plot", file("plot.svg"))...)
	if code != cli.ExitOK || !strings.Contains(stdout, "fairness") || !strings.Contains(stdout, "team-1") {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(append(workload, "-policy", "BALANCED,fgd", "-out", file("starts.csv"), "-json")...)
	var got []struct{ UsedPercent float64 }
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.ExitOK || err != nil || len(got) != 2 || got[1].UsedPercent <= 0 {
		t.Fatalf("exit %d: %s%s: %v", code, stdout, stderr, err)
	}
	for _, name := range []string{"starts-BALANCED.csv", "starts-fgd.csv", "plot.svg"} {
		if data, err := os.ReadFile(file(name)); err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

// What generate draws from a list is what replay draws by itself.
func TestLiveWorkloadsAreDrawnFromATrace(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if code, _, stderr := run("generate", "-out", file("trace"), "-count", "20", "-live"); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	draw := []string{"-nodes", file("trace/nodes.csv"), "-from", file("trace/arrivals.csv"), "-count", "10", "-load", "95", "-multi", "30", "-tasks", "500", "-hours", "300", "-wave", "0.2"}
	if code, _, stderr := run(append([]string{"generate", "-live", "-out", file("drawn")}, draw...)...); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	written := []string{"-nodes", file("drawn/nodes.csv"), "-arrivals", file("drawn/arrivals.csv"), "-history", file("drawn/history.csv")}
	for out, workload := range map[string][]string{"a": draw, "b": written} {
		if code, _, stderr := run(append([]string{"replay", "-queue", "-out", file(out + ".csv")}, workload...)...); code != cli.ExitOK {
			t.Fatal(stderr)
		}
	}
	a, errA := os.ReadFile(file("a.csv"))
	b, errB := os.ReadFile(file("b.csv"))
	if errA != nil || errB != nil || len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("the drawn and the written workload are replayed otherwise: %v %v", errA, errB)
	}
}
