// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = program.Run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, command.ExitUsage, "Usage: gpu-sim"},
		{[]string{"version"}, command.ExitOK, "gpu-sim "},
		{[]string{"simulate", "-help"}, command.ExitOK, "-arrivals"},
		{[]string{"simulate", "-nonsense"}, command.ExitUsage, "not defined"},
		{[]string{"simulate", "extra"}, command.ExitUsage, `unexpected argument "extra"`},
		{[]string{"simulate", "-nodes", "x"}, command.ExitUsage, "go together"},
		{[]string{"simulate", "-order", "x"}, command.ExitUsage, `-order "x" goes with -nodes and -arrivals`},
		{[]string{"replay", "-quotas", "x"}, command.ExitUsage, `-quotas "x" goes with -queue`},
		{[]string{"replay", "-queue", "-bounds", "-mig", "T4=1g.10gb", "-nodes", "n", "-arrivals", "a"}, command.ExitUsage, "does not go with -bounds"},
		{[]string{"replay", "-bounds"}, command.ExitUsage, "-bounds goes with -queue"},
		{[]string{"replay", "-queue", "-kept", "2"}, command.ExitUsage, "-kept goes with -bounds"},
		{[]string{"replay", "-queue", "-bounds", "-max-per-job", "-1"}, command.ExitUsage, "want 0 or more"},
		{[]string{"replay", "-queue", "-bounds", "-policy", "fgd"}, command.ExitError, "only with the product's policies"},
		{[]string{"generate", "-out", "x", "-burst"}, command.ExitUsage, "-burst goes with tasks that end"},
		{[]string{"replay", "-more", "n=2"}, command.ExitUsage, `-more "n=2" goes with -nodes and -arrivals`},
		{[]string{"replay", "-nodes", "x"}, command.ExitUsage, "go together"},
		{[]string{"replay", "-nodes", "x", "-arrivals", "x", "-load", "90"}, command.ExitUsage, "-load does not go with -arrivals"},
		{[]string{"replay", "-hours", "3"}, command.ExitUsage, "-hours goes with -from"},
		{[]string{"replay", "-from", "x", "-nodes", "x", "-wave", "2"}, command.ExitUsage, "-wave 2: want 0 to 1"},
		{[]string{"replay", "-exponential"}, command.ExitUsage, "-exponential goes with -from"},
		{[]string{"replay", "-load", "130,33"}, command.ExitUsage, "-load: several go with -from"},
		{[]string{"replay", "-from", "x", "-nodes", "x", "-load", "130,"}, command.ExitUsage, `invalid value "130," for flag -load: want 1 to 10000`},
		{[]string{"replay", "-policy", "BEST"}, command.ExitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"simulate", "-nodes", "no-such-file", "-arrivals", "x"}, command.ExitError, "no-such-file"},
		{[]string{"simulate", "-from", "x"}, command.ExitUsage, "-from needs -nodes"},
		{[]string{"simulate", "-from", "x", "-nodes", "x", "-order", "x"}, command.ExitUsage, "-order does not go with -from"},
		{[]string{"simulate", "-from", "x", "-nodes", "no-such-file"}, command.ExitError, "no-such-file"},
		{[]string{"simulate", "-shared", "40"}, command.ExitUsage, "-shared goes with -from"},
		{[]string{"simulate", "-nodes", "x", "-arrivals", "x", "-models", "40"}, command.ExitUsage, "-models goes with -from"},
		{[]string{"simulate", "-demand", "0"}, command.ExitUsage, "-demand 0: want 1 to 10000"},
		{[]string{"simulate", "-shared", "140"}, command.ExitUsage, `invalid value "140" for flag -shared: want a number from 0 to 100`},
		{[]string{"simulate", "-policy", "BEST"}, command.ExitError, "want BALANCED, PACK or SPREAD; or fast, fgd"},
		{[]string{"generate"}, command.ExitUsage, "-out is required"},
		{[]string{"generate", "-out", "x", "-count", "0"}, command.ExitUsage, "-count 0: want 1 or more"},
		{[]string{"generate", "-out", "x", "-live", "-teams", "-1"}, command.ExitUsage, "-teams -1: want 0 or more"},
		{[]string{"generate", "-out", "x", "-live", "-load", "0"}, command.ExitUsage, `invalid value "0" for flag -load: want 1 to 10000`},
		{[]string{"generate", "-out", "x", "-teams", "2"}, command.ExitUsage, "-teams goes with -live"},
		{[]string{"generate", "-out", "x", "-multi", "many"}, command.ExitUsage, `invalid value "many" for flag -multi: want a number from 0 to 100`},
		{[]string{"generate", "-out", "x", "-cpu-only", "NaN"}, command.ExitUsage, `invalid value "NaN" for flag -cpu-only`},
		{[]string{"generate", "-out", "x", "-nodes", "x"}, command.ExitUsage, "-nodes goes with -from"},
		{[]string{"generate", "-out", "x", "-nodes", "x", "-from", "x", "-teams", "2"}, command.ExitUsage, "-teams does not go with -from"},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit %d, want %d; says %q, want %q", c.args, code, c.code, stdout+stderr, c.says)
		}
	}
}

// The figures of one workload on every policy are those of the last release: a change of
// the planner that changes them is seen here.
func TestFiguresOfAReplay(t *testing.T) {
	text := ""
	for _, args := range [][]string{
		{"simulate", "-json", "-policy", "BALANCED,PACK,SPREAD,fast,fgd,bestfit,random"},
		{"replay", "-count", "12", "-demand", "400", "-json", "-policy", "BALANCED,PACK,SPREAD,fast,fgd,bestfit,random"},
		{"replay", "-count", "12", "-demand", "400", "-burst", "-queue", "-bounds", "-json"},
	} {
		code, stdout, stderr := run(args...)
		if code != command.ExitOK {
			t.Fatalf("%v: exit %d: %s", args, code, stderr)
		}
		stdout = regexp.MustCompile(`(?m)^ *"Speed": \{[^}]*\},?\n|^ *"\w+(_per_second|_us|_mib)": .*\n`).ReplaceAllString(stdout, "")
		text += strings.Join(args, " ") + "\n" + regexp.MustCompile(`\d+\.\d+`).ReplaceAllStringFunc(stdout, func(figure string) string {
			n, _ := strconv.ParseFloat(figure, 64)
			return strconv.FormatFloat(n, 'f', 2, 64) // processors differ in the last digits
		})
	}
	golden.Compare(t, "figures.golden", text)
}

// The section on bounds is in the table and in JSON.
func TestReplaySaysBounds(t *testing.T) {
	args := []string{"replay", "-count", "8", "-demand", "300", "-queue", "-burst", "-bounds"}
	code, stdout, stderr := run(args...)
	if code != command.ExitOK || !strings.Contains(stdout, "Overtaken") || !strings.Contains(stdout, "Of its guarantee") || !strings.Contains(stdout, "Handover") {
		t.Fatalf("exit %d: %s\n%s", code, stdout, stderr)
	}
	_, stdout, _ = run(append(args, "-json")...)
	var all []struct {
		Bounds struct{ Sizes []struct{ Size string } }
	}
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) != 1 || len(all[0].Bounds.Sizes) == 0 || all[0].Bounds.Sizes[0].Size == "" {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestGenerateThenSimulate(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run("generate", "-out", dir, "-count", "20"); code != command.ExitOK {
		t.Fatal(stderr)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	code, stdout, stderr := run("simulate", "-nodes", file("nodes.csv"), "-arrivals", file("arrivals.csv"),
		"-history", file("history.csv"), "-policy", "BALANCED,fgd", "-out", file("placed.csv"), "-plot", file("plot.svg"), "-json")
	if code != command.ExitOK {
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
	if code, _, stderr := run("generate", "-out", file("trace"), "-count", "20", "-seed", "5"); code != command.ExitOK {
		t.Fatal(stderr)
	}
	draw := []string{"-nodes", file("trace/nodes.csv"), "-from", file("trace/history.csv"), "-seed", "7", "-demand", "120",
		"-shared", "40", "-multi", "20", "-models", "33", "-cpu-only", "5"}
	if code, _, stderr := run(append([]string{"generate", "-out", file("drawn")}, draw...)...); code != command.ExitOK {
		t.Fatal(stderr)
	}
	written := []string{"-nodes", file("drawn/nodes.csv"), "-arrivals", file("drawn/arrivals.csv"), "-history", file("drawn/history.csv")}
	for out, workload := range map[string][]string{"a": draw, "b": written} {
		args := append([]string{"simulate", "-policy", "BALANCED,fgd", "-out", file(out + ".csv")}, workload...)
		if code, _, stderr := run(args...); code != command.ExitOK {
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
	if code != command.ExitError || !strings.Contains(stderr, "history.csv") || !strings.Contains(stderr, "want 100 at most together") {
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
			if code, stdout, stderr := run(args...); code != command.ExitOK || !regexp.MustCompile(c.table).MatchString(stdout) {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
			if code, stdout, stderr := run(append(args, "-json")...); code != command.ExitOK || !strings.Contains(stdout, c.json) {
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
	if code, _, stderr := run("generate", "-out", dir, "-count", "5", "-demand", "300", "-live"); code != command.ExitOK {
		t.Fatal(stderr)
	}
	workload := []string{"replay", "-nodes", file("nodes.csv"), "-arrivals", file("arrivals.csv"), "-history", file("history.csv")}
	code, stdout, stderr := run(append(workload, "-queue", "-plot", file("plot.svg"))...)
	if code != command.ExitOK || !strings.Contains(stdout, "fairness") || !strings.Contains(stdout, "team-1") {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(append(workload, "-policy", "BALANCED,fgd", "-out", file("starts.csv"), "-json")...)
	var got []struct{ UsedPercent float64 }
	if err := json.Unmarshal([]byte(stdout), &got); code != command.ExitOK || err != nil || len(got) != 2 || got[1].UsedPercent <= 0 {
		t.Fatalf("exit %d: %s%s: %v", code, stdout, stderr, err)
	}
	for _, name := range []string{"starts-BALANCED.csv", "starts-fgd.csv", "plot.svg"} {
		if data, err := os.ReadFile(file(name)); err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

// More nodes of a kind that is there keep what was lost.
func TestReplayWithMoreNodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\ngpu-1,8000,8192,1,T4\n",
		"tasks.csv": "name,arrival_s,duration_s,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,0,100,1000,1024,1,1000,\nb,50,100,1000,1024,1,1000,\nc,60,100,1000,1024,1,1000,\n",
	} {
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	workload := []string{"replay", "-nodes", file("nodes.csv"), "-arrivals", file("tasks.csv"), "-json"}
	for _, c := range []struct {
		more    string
		started int
	}{{"", 1}, {"gpu-1=1", 2}, {"gpu-1=2", 3}} {
		code, stdout, stderr := run(append(workload, "-more", c.more)...)
		var got []struct{ Started int }
		if err := json.Unmarshal([]byte(stdout), &got); code != command.ExitOK || err != nil || got[len(got)-1].Started != c.started || got[0].Started != 1 {
			t.Errorf("with %q: exit %d, started %+v, want %d: %s", c.more, code, got, c.started, stderr)
		}
	}
	for _, more := range []string{"gpu-1", "gpu-1=0", "gpu-1=x", "gpu-9=1"} {
		if code, _, stderr := run(append(workload, "-more", more)...); code != command.ExitError || !strings.Contains(stderr, more) {
			t.Errorf("-more %s: exit %d, %s", more, code, stderr)
		}
	}
}

// Baselines run beside the service as it is, and without a history.
func TestBaselinesRunBesideTheService(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\ngpu-1,8000,8192,2,A100\n",
		// b borrows what a queue is guaranteed that comes later.
		"tasks.csv":  "name,arrival_s,duration_s,cpu_milli,memory_mib,num_gpu,gpu_milli,priority,queue\na,0,7200,1000,1024,1,1000,50,x\nb,0,7200,1000,1024,1,1000,50,x\nc,600,60,1000,1024,1,1000,50,y\n",
		"quotas.csv": "queue,parent,guarantee_milli,limit_milli\nx,,1000,2000\ny,,1000,2000\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := run("replay", "-cluster", dir, "-policy", "BALANCED,fgd,bestfit")
	if code != command.ExitOK || !strings.Contains(stdout, "Overtaken") || !regexp.MustCompile(`fgd +y +1 +110 min`).MatchString(stdout) || !regexp.MustCompile(`BALANCED +y +1 +0 s`).MatchString(stdout) {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := run("replay", "-cluster", dir, "-quotas", "", "-bounds=false", "-policy", "BALANCED,fgd"); code != command.ExitOK || strings.Contains(stdout, "Overtaken") {
		t.Errorf("without bounds: exit %d: %s%s", code, stdout, stderr)
	}
	arrivals := []string{"-nodes", filepath.Join(dir, "nodes.csv"), "-arrivals", filepath.Join(dir, "tasks.csv"), "-policy", "BALANCED,fgd"}
	for _, command := range []string{"replay", "simulate"} {
		if code, _, stderr := run(append([]string{command}, arrivals...)...); code != 0 {
			t.Errorf("%s without a history: exit %d: %s", command, code, stderr)
		}
	}
}

// The order of a file's lines says nothing: the figures of a replay are those of its times.
func TestALineOutOfOrderChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run("generate", "-out", dir, "-count", "5", "-demand", "300", "-live"); code != command.ExitOK {
		t.Fatal(stderr)
	}
	file := filepath.Join(dir, "arrivals.csv")
	replayed := func() (percent float64) {
		t.Helper()
		code, stdout, stderr := run("replay", "-nodes", filepath.Join(dir, "nodes.csv"), "-arrivals", file, "-json")
		var got []struct{ UsedPercent float64 }
		if err := json.Unmarshal([]byte(stdout), &got); code != command.ExitOK || err != nil {
			t.Fatalf("exit %d: %s%s: %v", code, stdout, stderr, err)
		}
		return got[0].UsedPercent
	}
	want := replayed()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	lines[1], lines[len(lines)-2] = lines[len(lines)-2], lines[1]
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := replayed(); got != want || want <= 0 {
		t.Errorf("with its first and last line exchanged %v%% are used instead of %v%%", got, want)
	}
}

// A cluster that was exported is replayed as it is and as it would be.
func TestReplayOfACluster(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nodes.csv": "sn,cpu_milli,memory_mib,gpu,model,gpu_memory_mib\ngpu-1,8000,8192,1,A100,81559\n",
		"tasks.csv": "name,arrival_s,duration_s,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_memory_milli,gpu_spec\na,0,100,1000,1024,1,500,,\nb,0,100,1000,1024,1,500,,\nc,90,100,1000,1024,1,300,200,\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type outcome struct {
		Policy  string
		Classes map[string]struct{ Wait struct{ Longest float64 } }
	}
	for name, c := range map[string]struct {
		args []string
		want map[string]float64 // longest wait, by policy
	}{
		"as it is":          {nil, map[string]float64{"BALANCED": 10}},
		"more nodes":        {[]string{"-more", "gpu-1=1", "-policy", "PACK,BALANCED"}, map[string]float64{"as-it-is": 10, "PACK": 0, "BALANCED": 0}},
		"three slices":      {[]string{"-slices", "3"}, map[string]float64{"as-it-is": 10, "BALANCED": 100}},
		"two instances":     {[]string{"-mig", "A100=4g.40gb+3g.40gb"}, map[string]float64{"as-it-is": 10, "BALANCED": 100}},
		"seven instances":   {[]string{"-mig", "a100=4g.40gb+1g.10gb+1g.10gb", "-more", "gpu-1=1"}, map[string]float64{"as-it-is": 10, "BALANCED": 10}},
		"as many as enough": {[]string{"-slices", "10"}, map[string]float64{"as-it-is": 10, "BALANCED": 10}},
	} {
		code, stdout, stderr := run(append([]string{"replay", "-cluster", dir, "-json", "-plot", filepath.Join(dir, "p.svg")}, c.args...)...)
		var got []outcome
		if err := json.Unmarshal([]byte(stdout), &got); code != command.ExitOK || err != nil || len(got) != len(c.want) {
			t.Errorf("%s: exit %d, %s%s: %v", name, code, stdout, stderr, err)
		}
		for _, g := range got {
			if want, ok := c.want[g.Policy]; !ok || g.Classes["1"].Wait.Longest != want {
				t.Errorf("%s: %s waits for %v, want %v", name, g.Policy, g.Classes["1"].Wait.Longest, want)
			}
		}
	}
	for _, args := range [][]string{{"-slices", "-1"}, {"-slices", "1001"}, {"-nodes", "x"}, {"-from", "x"}} {
		if code, _, stderr := run(append([]string{"replay", "-cluster", dir}, args...)...); code != command.ExitUsage || !strings.Contains(stderr, args[0]) {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
	for args, says := range map[string]string{
		"-mig A100": "a model, =, and profiles", "-mig H100=7g.80gb": `no node has a GPU of model "H100"`, "-mig A100=8g.80gb": "is not a profile",
		"-mig A100=7g.80gb -policy fgd": "the product's policies", "-mig A100=7g.80gb -outlook 1": "the product's policies",
	} {
		if code, _, stderr := run(append([]string{"replay", "-cluster", dir}, strings.Fields(args)...)...); code == command.ExitOK || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
	if code, _, stderr := run("replay", "-slices", "4"); code != command.ExitUsage || !strings.Contains(stderr, "-cluster") {
		t.Errorf("-slices alone: exit %d, %s", code, stderr)
	}
}

// An exported cluster is replayed with its queues: -quotas says how long they wait.
func TestQuotasOfACluster(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model,gpu_memory_mib\ngpu-1,8000,8192,2,A100,81559\n")
	file("tasks.csv", "name,arrival_s,duration_s,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_memory_milli,gpu_spec,time_limit_s,min_run_s,priority,queue\n"+
		"a,0,100,1000,1024,1,1000,1000,A100,0,60,50,team\nb,10,100,1000,1024,1,1000,1000,,200,60,50,team\nc,20,100,1000,1024,1,500,250,,0,60,60,team\n")
	for quota, want := range map[string]float64{"3000": 60, "2000": 60, "1000": 170} {
		quotas := file("quotas.csv", "queue,parent,guarantee_milli,limit_milli\nteam,,"+quota+","+quota+"\n")
		code, stdout, stderr := run("replay", "-cluster", dir, "-quotas", quotas, "-json")
		var got []struct {
			Queues map[string]struct{ Longest float64 }
		}
		if err := json.Unmarshal([]byte(stdout), &got); code != command.ExitOK || err != nil || got[0].Queues["team"].Longest != want {
			t.Errorf("quota %s: exit %d, %+v, want %v: %s", quota, code, got, want, stderr)
		}
	}
	for _, args := range [][]string{{"-mig", "A100=4g.40gb+3g.40gb"}, {"-outlook", "1"}} { // for which nothing is evicted
		if code, _, stderr := run(append([]string{"replay", "-cluster", dir, "-json"}, args...)...); code != command.ExitOK {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
}

// What generate draws from a list is what replay draws by itself.
func TestLiveWorkloadsAreDrawnFromATrace(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if code, _, stderr := run("generate", "-out", file("trace"), "-count", "20", "-live"); code != command.ExitOK {
		t.Fatal(stderr)
	}
	draw := []string{"-nodes", file("trace/nodes.csv"), "-from", file("trace/arrivals.csv"), "-count", "10", "-load", "95,40.5", "-exponential", "-multi", "30", "-tasks", "500", "-hours", "300", "-wave", "0.2"}
	if code, _, stderr := run(append([]string{"generate", "-live", "-out", file("drawn")}, draw...)...); code != command.ExitOK {
		t.Fatal(stderr)
	}
	written := []string{"-nodes", file("drawn/nodes.csv"), "-arrivals", file("drawn/arrivals.csv"), "-history", file("drawn/history.csv")}
	for out, workload := range map[string][]string{"a": draw, "b": written} {
		if code, _, stderr := run(append([]string{"replay", "-queue", "-out", file(out + ".csv")}, workload...)...); code != command.ExitOK {
			t.Fatal(stderr)
		}
	}
	a, errA := os.ReadFile(file("a.csv"))
	b, errB := os.ReadFile(file("b.csv"))
	if errA != nil || errB != nil || len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("the drawn and the written workload are replayed otherwise: %v %v", errA, errB)
	}
}

// What Slurm has run can be replayed.
func TestImport(t *testing.T) {
	dir := t.TempDir()
	jobs, nodes, arrivals := filepath.Join(dir, "jobs.txt"), filepath.Join(dir, "nodes.csv"), filepath.Join(dir, "arrivals.csv")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(jobs, "JobID|Submit|ElapsedRaw|TimelimitRaw|ReqTRES|Account\n1|2026-03-01T10:00:00|60|5|cpu=8,gres/gpu=2,mem=64G,node=1|a\n2|2026-03-01T10:00:10|60|5|cpu=8,gres/gpu=4,mem=64G,node=2|a\n3|2026-03-01T10:00:10|0|5|cpu=8,gres/gpu=4,mem=64G,node=2|a\n")
	write(nodes, "sn,cpu_milli,memory_mib,gpu,model\nn,96000,500000,4,A100\n")
	code, stdout, stderr := run("import", jobs)
	if code != command.ExitOK || !strings.Contains(stderr, "2 jobs, 1 of them on several nodes: 3 tasks; 1 jobs never ran") {
		t.Fatalf("code %d, %s", code, stderr)
	}
	write(arrivals, stdout)
	if code, stdout, stderr := run("replay", "-nodes", nodes, "-arrivals", arrivals, "-queue"); code != command.ExitOK {
		t.Errorf("code %d, %s %s", code, stdout, stderr)
	}
	pods := filepath.Join(dir, "pods.json")
	write(pods, `{"items": [{"metadata": {"name": "p", "creationTimestamp": "2026-03-01T10:00:00Z"}, "spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]},
		"status": {"containerStatuses": [{"state": {"terminated": {"startedAt": "2026-03-01T10:00:00Z", "finishedAt": "2026-03-01T10:06:00Z"}}}]}}]}`)
	if code, stdout, stderr := run("import", pods); code != command.ExitOK || !strings.Contains(stderr, "1 pods, 0 of them still running, 0 gangs; 0 pods never ran") || !strings.Contains(stdout, "0,360,") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	for _, args := range [][]string{{"import"}, {"import", jobs, jobs}} {
		if code, _, stderr := run(args...); code != command.ExitUsage || !strings.Contains(stderr, "name one file that sacct or kubectl has written") {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
	if code, _, stderr := run("import", nodes); code != command.ExitError || !strings.Contains(stderr, `no column "JobID"`) {
		t.Errorf("code %d, %s", code, stderr)
	}
}
