// SPDX-License-Identifier: MPL-2.0

package framework

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

func TestParseMeta(t *testing.T) {
	with := func(pairs ...string) map[string]string {
		meta := map[string]string{"gpu": "8G", MetaFramework: "pytorch"}
		for i := 0; i < len(pairs); i += 2 {
			meta[pairs[i]] = pairs[i+1]
		}
		return meta
	}
	for name, test := range map[string]struct {
		meta map[string]string
		want Options
		err  string
	}{
		"defaults":             {with(), Options{Kind: PyTorch, Memory: Conservative}, ""},
		"everything":           {with(MetaFramework, "tensorflow", MetaMemory, "aggressive", MetaPrecision, "true", MetaDistributed, "true", MetaInterface, "eth0,ib0", MetaHelper, "false"), Options{Kind: TensorFlow, Memory: Aggressive, MixedPrecision: true, Distributed: true, Interface: "eth0,ib0", NoHelper: true}, ""},
		"own fraction":         {with(MetaFraction, "0.9"), Options{Kind: PyTorch, Memory: Conservative, FractionMilli: 900}, ""},
		"whole share":          {with(MetaFraction, "1"), Options{Kind: PyTorch, Memory: Conservative, FractionMilli: 1000}, ""},
		"no framework":         {map[string]string{"gpu": "8G"}, Options{}, ""},
		"unknown framework":    {with(MetaFramework, "torch"), Options{}, `meta gpu_framework "torch" is not one of pytorch, tensorflow`},
		"empty framework":      {with(MetaFramework, ""), Options{}, `meta gpu_framework "" is not one of pytorch, tensorflow`},
		"unknown mode":         {with(MetaMemory, "greedy"), Options{}, `meta gpu_memory_mode "greedy" is not one of conservative, aggressive, dynamic`},
		"not a bool":           {with(MetaPrecision, "yes"), Options{}, `meta gpu_mixed_precision "yes" is not one of true, false`},
		"fraction zero":        {with(MetaFraction, "0"), Options{}, `meta gpu_memory_fraction "0" is not a fraction from 0.001 to 1`},
		"fraction 0.000":       {with(MetaFraction, "0.000"), Options{}, `meta gpu_memory_fraction "0.000" is not a fraction from 0.001 to 1`},
		"fraction above one":   {with(MetaFraction, "1.5"), Options{}, `meta gpu_memory_fraction "1.5" is not a fraction from 0.001 to 1`},
		"fraction exponent":    {with(MetaFraction, "9e-1"), Options{}, `meta gpu_memory_fraction "9e-1" is not a fraction from 0.001 to 1`},
		"fraction and dynamic": {with(MetaFraction, "0.9", MetaMemory, "dynamic"), Options{}, `a memory fraction and memory mode "dynamic" contradict each other; leave one out`},
		"interface injection":  {with(MetaInterface, "eth0\nX=1"), Options{}, `interface "eth0\nX=1" is not a list of interface names such as "eth0" or "^lo,docker"`},
		"without framework":    {map[string]string{MetaDistributed: "true"}, Options{}, `meta "gpu_distributed" needs meta "gpu_framework" beside it, one of pytorch, tensorflow`},
	} {
		t.Run(name, func(t *testing.T) {
			got, found, err := ParseMeta(test.meta)
			if text := errorText(err); text != test.err {
				t.Fatalf("error %q, want %q", text, test.err)
			}
			if want := test.want.Kind != ""; err == nil && found != want {
				t.Errorf("found %v, want %v", found, want)
			}
			if err == nil && got != test.want {
				t.Error(cmp.Diff(test.want, got))
			}
		})
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add("pytorch", "dynamic", "0.9", "true", "eth0")
	f.Fuzz(func(t *testing.T, kind, memory, fraction, distributed, iface string) {
		o, found, err := ParseMeta(map[string]string{MetaFramework: kind, MetaMemory: memory, MetaFraction: fraction, MetaDistributed: distributed, MetaInterface: iface})
		if err != nil || !found {
			return
		}
		if _, err := Plan(o, Share{GPUs: 1}, Group{Job: iface, Group: "g", Task: "t", Count: 1}); err != nil {
			t.Errorf("accepted options %+v cannot be planned: %v", o, err)
		}
	})
}

func TestPlan(t *testing.T) {
	group := Group{Job: "train", Group: "ranks", Task: "rank", Count: 2, Network: "host"}
	for name, test := range map[string]struct {
		options Options
		share   Share
		group   Group
	}{
		"pytorch-slice":              {Options{Kind: PyTorch, Memory: Conservative}, Share{GPUs: 1, MemoryMiB: 8192, Type: "A100"}, group},
		"pytorch-dynamic":            {Options{Kind: PyTorch, Memory: Dynamic, NoHelper: true}, Share{GPUs: 1, MemoryMiB: 8192}, group},
		"pytorch-distributed":        {Options{Kind: PyTorch, Memory: Aggressive, MixedPrecision: true, Distributed: true}, Share{GPUs: 1, Whole: true, Type: "V100"}, group},
		"pytorch-distributed-multi":  {Options{Kind: PyTorch, Memory: Aggressive, MixedPrecision: true, Distributed: true, Interface: "ib0"}, Share{GPUs: 4, Whole: true, Type: "H100"}, group},
		"tensorflow-fraction":        {Options{Kind: TensorFlow, Memory: Conservative, FractionMilli: 900, MixedPrecision: true}, Share{GPUs: 1, MemoryMiB: 20480, Type: "A100"}, group},
		"tensorflow-dynamic":         {Options{Kind: TensorFlow, Memory: Dynamic}, Share{GPUs: 1, Whole: true}, group},
		"tensorflow-distributed":     {Options{Kind: TensorFlow, Memory: Conservative, Distributed: true}, Share{GPUs: 1, Whole: true}, group},
		"pytorch-distributed-shares": {Options{Kind: PyTorch, Memory: Conservative, Distributed: true, Interface: "^lo"}, Share{GPUs: 1, MemoryMiB: 4096}, group},
		"pytorch-elastic":            {Options{Kind: PyTorch, Memory: Aggressive, Distributed: true}, Share{GPUs: 2, Whole: true, Type: "H100"}, Group{Job: "train", Group: "ranks", Task: "rank", Count: 3, Least: 2, Most: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			setup, err := Plan(test.options, test.share, test.group)
			if err != nil {
				t.Fatal(err)
			}
			for i := range setup.Templates {
				if setup.Templates[i].EmbeddedTmpl == helperSource {
					setup.Templates[i].EmbeddedTmpl = "(sitecustomize.py)"
				}
			}
			var text bytes.Buffer
			encoder := json.NewEncoder(&text)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			if err := encoder.Encode(struct {
				Setup
				Notes []string
			}{setup, setup.Notes}); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".json", text.String())
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	distributed := Options{Kind: PyTorch, Memory: Conservative, Distributed: true}
	for name, test := range map[string]struct {
		options Options
		gpus    int
		group   Group
		err     string
	}{
		"no GPU":  {Options{Kind: PyTorch, Memory: Conservative}, 0, Group{}, "framework pytorch needs at least one GPU, the task has 0"},
		"options": {Options{Kind: "jax"}, 1, Group{}, `framework "jax" is not one of pytorch, tensorflow`},
		"count":   {distributed, 1, Group{}, "distributed training needs a group count of at least 1, it is 0"},
		"elastic TensorFlow": {Options{Kind: TensorFlow, Memory: Conservative, Distributed: true}, 1, Group{Count: 4, Least: 2, Most: 4},
			"a distributed TensorFlow training needs all of its 4 workers: TF_CONFIG lists them; leave gpu_gang_min out, or use PyTorch with torchrun"},
		"bridge": {distributed, 1, Group{Group: "g", Count: 2, Network: "bridge"}, `distributed training in group "g" needs network mode "host" or a CNI network that routes between the nodes: the ranks open ports of their own, which mode "bridge" does not forward`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Plan(test.options, Share{GPUs: test.gpus}, test.group)
			if text := errorText(err); text != test.err {
				t.Errorf("error %q, want %q", text, test.err)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	setup := Setup{Env: map[string]string{pythonPath: "/ours", "NCCL_DEBUG": "WARN", EnvMode: "dynamic"}}
	got := setup.Merge(map[string]string{pythonPath: "/theirs", "NCCL_DEBUG": "INFO", "EPOCHS": "3"})
	want := map[string]string{pythonPath: "/theirs:/ours", "NCCL_DEBUG": "INFO", "EPOCHS": "3", EnvMode: "dynamic"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	told := Setup{Env: map[string]string{EnvRanks: "2:4"}}
	if got := told.Merge(map[string]string{EnvRanks: "7"})[EnvRanks]; got != "2:4" {
		t.Errorf("a forged number of ranks stands: %q", got)
	}
	if again := setup.Merge(map[string]string{pythonPath: "/ours"}); again[pythonPath] != "/ours" {
		t.Errorf("merged twice: %q", again[pythonPath])
	}
}

// service is what Nomad's templates call a service.
type service struct {
	Address string
	Port    int
	Tags    []string
}

// render runs a template as Nomad would in the allocation of an index, and reports
// whether it must wait.
func render(t *testing.T, text, index string, services ...service) (string, bool) {
	t.Helper()
	waits := false
	functions := template.FuncMap{
		"nomadService": func(string) []service { return services },
		"byTag": func(all []service) map[string][]any {
			tagged := map[string][]any{}
			for _, s := range all {
				for _, tag := range s.Tags {
					tagged[tag] = append(tagged[tag], s)
				}
			}
			return tagged
		},
		"nomadVarExists": func(string) bool { return false },
		"nomadVar":       func(string) map[string]string { waits = true; return nil },
		"env":            func(string) string { return index },
		"parseInt":       func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) },
		"add":            func(b, a any) int64 { return reflect.ValueOf(a).Int() + reflect.ValueOf(b).Int() },
		"loop": func(n int64) []int64 {
			all := make([]int64, n)
			for i := range all {
				all[i] = int64(i)
			}
			return all
		},
	}
	var out strings.Builder
	if err := template.Must(template.New("").Funcs(functions).Parse(text)).Execute(&out, nil); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), waits
}

func TestRendezvousWaitsForItsRanks(t *testing.T) {
	zero := service{"10.0.0.1", 20001, []string{"gpu-rendezvous", "rank-0"}}
	one := service{"10.0.0.2", 20002, []string{"gpu-rendezvous", "rank-1"}}
	two := service{"10.0.0.3", 20003, []string{"gpu-rendezvous", "rank-2"}}
	elastic := torchrunRendezvous("s", 2, 3)
	meet := func(endpoint, host, own string) string {
		return "PET_RDZV_ENDPOINT=" + endpoint + "\nPET_RDZV_CONF=is_host=" + host + "\nPET_LOCAL_ADDR=" + own
	}
	torch, tf := pytorchRendezvous("s", 2), tensorflowRendezvous("s", 2)
	torchEnv := "MASTER_ADDR=10.0.0.1\nMASTER_PORT=20001\nPET_MASTER_ADDR=10.0.0.1\nPET_MASTER_PORT=20001"
	tfEnv := `TF_CONFIG='{"cluster":{"worker":["10.0.0.1:20001","10.0.0.2:20002"]},"task":{"type":"worker","index":1}}'`
	for name, test := range map[string]struct {
		template, index string
		services        []service
		want            string
		waits           bool
	}{
		"torch, nobody":             {torch, "1", nil, "", true},
		"torch, only rank 1":        {torch, "1", []service{one}, "", true},
		"torch, rank 0":             {torch, "1", []service{zero}, torchEnv, false},
		"torch, all":                {torch, "1", []service{one, zero}, torchEnv, false},
		"torch, rank 0 twice":       {torch, "1", []service{zero, zero}, "", true},
		"torch, one rank too many":  {torch, "2", []service{zero, one, two}, "", true},
		"tensorflow, nobody":        {tf, "1", nil, "", true},
		"tensorflow, one missing":   {tf, "1", []service{zero}, "", true},
		"tensorflow, all":           {tf, "1", []service{one, zero}, tfEnv, false},
		"tensorflow, rank 1 twice":  {tf, "1", []service{zero, one, one}, "", true},
		"tensorflow, one too many":  {tf, "2", []service{zero, one, two}, "", true},
		"elastic, too few":          {elastic, "1", []service{one}, "", true},
		"elastic, the least":        {elastic, "1", []service{one, zero}, meet("10.0.0.1:20001", "0", "10.0.0.2"), false},
		"elastic, where they meet":  {elastic, "0", []service{one, zero}, meet("10.0.0.1:20001", "1", "10.0.0.1"), false},
		"elastic, another joined":   {elastic, "1", []service{two, one, zero}, meet("10.0.0.1:20001", "0", "10.0.0.2"), false},
		"elastic, rank 0 is lost":   {elastic, "1", []service{two, one}, meet("10.0.0.2:20002", "1", "10.0.0.2"), false},
		"elastic, not itself there": {elastic, "2", []service{zero, one}, "", true},
		"elastic, one is replaced":  {elastic, "2", []service{zero, one, two, two}, "", true},
		"elastic, one too many":     {elastic, "3", []service{zero, one, two, {"10.0.0.4", 20004, []string{"rank-3"}}}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, waits := render(t, test.template, test.index, test.services...)
			if got != test.want || waits != test.waits {
				t.Errorf("rendered %q, waits %v; want %q, %v", got, waits, test.want, test.waits)
			}
		})
	}
}

func TestServiceName(t *testing.T) {
	long := strings.Repeat("x", 80)
	for name, test := range map[string]struct {
		group Group
		want  string
	}{
		"plain":      {Group{Job: "train", Group: "g", Task: "t"}, "train-g-t-ranks"},
		"slash":      {Group{Job: "a/b", Group: "g", Task: "t"}, "a-b-g-t-ranks-798fd414"},
		"upper case": {Group{Job: "Train", Group: "g", Task: "t"}, "train-g-t-ranks-6cddbac9"},
		"long":       {Group{Job: long, Group: "g", Task: "t"}, long[:54] + "-59db0b60"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ServiceName(test.group)
			if len(got) > 63 {
				t.Errorf("%q is longer than a DNS label", got)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if a, b := ServiceName(Group{Job: "a/b"}), ServiceName(Group{Job: "a-b"}); a == b {
		t.Errorf("two jobs share the name %q", a)
	}
}

// TestHelper runs Python with frameworks that only record what is set.
func TestHelper(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed; it runs the helper file")
	}
	for name, test := range map[string]struct {
		env  []string
		code string
		want string
	}{
		"torch share":     {[]string{"GPU_MEMORY_SHARE_MIB=8192", "GPU_MEMORY_FRACTION=0.8"}, "import torch; print(torch.cuda.calls)", "[(0.08, 0), (0.08, 1)]"},
		"torch whole":     {[]string{"GPU_MEMORY_FRACTION=0.95"}, "import torch; print(torch.cuda.calls)", "[(0.95, 0), (0.95, 1)]"},
		"torch all of it": {[]string{"GPU_MEMORY_FRACTION=1"}, "import torch; print(torch.cuda.calls)", "[]"},
		"submodule first": {[]string{"GPU_MEMORY_FRACTION=0.5"}, "import torch.nn as nn, torch; print(nn.here, torch.cuda.calls)", "True [(0.5, 0), (0.5, 1)]"},
		"tf share":        {[]string{"GPU_MEMORY_SHARE_MIB=10240", "GPU_MEMORY_FRACTION=0.9"}, "import tensorflow as tf; print(tf.calls)", "[('limit', 9216)]"},
		"tf dynamic":      {[]string{"GPU_MEMORY_SHARE_MIB=10240", "GPU_MEMORY_MODE=dynamic"}, "import tensorflow as tf; print(tf.calls)", "[('growth', True)]"},
		"tf precision":    {[]string{"GPU_MEMORY_MODE=dynamic", "GPU_MIXED_PRECISION=bf16"}, "import tensorflow as tf; print(tf.calls)", "[('growth', True), ('policy', 'mixed_bfloat16')]"},
		"nothing":         {nil, "import json; print(json.dumps(1))", "1"},
		"chained":         {[]string{"PYTHONPATH=.:testdata/python/other:testdata/python"}, "import os; print(os.environ['OTHER'])", "ran"},
		"broken settings": {[]string{"GPU_MEMORY_FRACTION=lots"}, "import torch; print(torch.cuda.calls)", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			command := exec.Command(python, "-c", test.code)
			command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=.:testdata/python"}, test.env...)
			out, err := command.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
			}
			if got := strings.TrimSpace(string(out)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestASetupIsReadBack: a job is known by what is registered, so the share that a
// setup was made for must come out of it, and make the same setup.
func TestASetupIsReadBack(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		share   Share
		group   Group
	}{
		"slices": {Options{Kind: PyTorch, Memory: Conservative, MixedPrecision: true}, Share{GPUs: 1, MemoryMiB: 8192, Type: "A100"}, Group{}},
		"whole":  {Options{Kind: TensorFlow, Memory: Dynamic, MixedPrecision: true}, Share{GPUs: 1, Whole: true, Type: "V100"}, Group{}},
		"ranks":  {Options{Kind: PyTorch, Memory: Aggressive, Distributed: true}, Share{GPUs: 4, Whole: true, Type: "H100"}, Group{Count: 3}},
		"torchrun": {Options{Kind: PyTorch, Memory: Aggressive, Distributed: true}, Share{GPUs: 1, Whole: true, Type: "H100"},
			Group{Count: 3, Least: 2, Most: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			setup, err := Plan(test.options, test.share, test.group)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Plan(test.options, WrittenShare(setup.Env), test.group)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(setup, again); diff != "" {
				t.Errorf("planned, read and planned again (-first +again):\n%s", diff)
			}
		})
	}
	if got := WrittenShare(map[string]string{"PATH": "/bin"}); got != (Share{}) {
		t.Errorf("a task without a setup has %+v", got)
	}
}

// Each vendor's builds of a framework have variables of their own; what an earlier setup
// was made for is known again.
func TestVendorsHaveTheirOwnNames(t *testing.T) {
	allocators := []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"}
	for vendor, want := range map[string]struct{ variable, device, told string }{
		"":       {"PYTORCH_CUDA_ALLOC_CONF", `"cuda"`, ""},
		"nvidia": {"PYTORCH_CUDA_ALLOC_CONF", `"cuda"`, ""},
		"amd":    {"PYTORCH_HIP_ALLOC_CONF", `"cuda"`, "amd"},
		"intel":  {"", `"xpu"`, "intel"},
		"huawei": {"PYTORCH_NPU_ALLOC_CONF", `"npu"`, "huawei"},
	} {
		share := Share{GPUs: 1, MemoryMiB: 8192, Vendor: vendor, Type: "MI300X"}
		setup, err := Plan(Options{Kind: PyTorch, Memory: Conservative, MixedPrecision: true}, share, Group{Job: "j", Group: "g", Task: "t", Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range allocators {
			if (setup.Env[name] != "") != (name == want.variable) {
				t.Errorf("%s: %s is %q", vendor, name, setup.Env[name])
			}
		}
		if notes := strings.Join(setup.Notes, " "); !strings.Contains(notes, "autocast("+want.device) || setup.Env[EnvVendor] != want.told || setup.Env[EnvPrecision] != "bf16" {
			t.Errorf("%s: %v, %s", vendor, setup.Env, notes)
		}
		again, err := Plan(Options{Kind: PyTorch, Memory: Conservative, MixedPrecision: true}, WrittenShare(setup.Env), Group{Job: "j", Group: "g", Task: "t", Count: 1})
		if err != nil || !reflect.DeepEqual(again.Env, setup.Env) {
			t.Errorf("%s: another time %s, %v", vendor, cmp.Diff(setup.Env, again.Env), err)
		}
		grown, err := Plan(Options{Kind: TensorFlow, Memory: Dynamic}, share, Group{Job: "j", Group: "g", Task: "t", Count: 1})
		if err != nil || (grown.Env["TF_GPU_ALLOCATOR"] != "") != (want.told == "") {
			t.Errorf("%s: TensorFlow gets %v, %v", vendor, grown.Env, err)
		}
	}
}
