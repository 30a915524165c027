// SPDX-License-Identifier: MPL-2.0

package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nomad-gpu/nomad-gpu/"

// rule forbids imports, also through other packages of ours. Paths below our module
// are written without it; one that ends in "/..." means everything below as well.
type rule struct {
	name    string
	from    []string
	forbids []string
	// except lists packages of from that the rule does not bind.
	except []string
	// direct rules are about what a package imports itself.
	direct bool
	reason string
}

var rules = []rule{
	{
		name: "the contract stands alone", from: []string{"internal/gpu"},
		forbids: []string{"device/...", "driver/...", "scheduler/...", "plugin/...", "e2e/...", "internal/statedir", "internal/testca", "internal/testimage", "third-party"},
		reason:  "internal/gpu is what all parts agree on, across releases: it must not change because a library does",
	},
	{
		name: "the device plugin stands alone", from: []string{"device/..."},
		forbids: []string{"driver/...", "scheduler/..."},
		reason:  "the parts are released, restarted and replaced apart: they speak through the environment and the state files only",
	},
	{
		name: "the driver stands alone", from: []string{"driver/..."},
		forbids: []string{"device/...", "scheduler/..."},
		reason:  "the parts are released, restarted and replaced apart: they speak through the environment and the state files only",
	},
	{
		name: "the placement service stands alone", from: []string{"scheduler/..."},
		forbids: []string{"device/...", "driver/..."},
		reason:  "the service sees nodes through Nomad only, so that every job still runs without it",
	},
	{
		name: "mains are leaves", from: []string{"device/...", "driver/...", "scheduler/...", "internal/...", "e2e/...", "plugin/..."},
		forbids: []string{"plugin/..."},
		reason:  "a main package decides how to run, not what to do: what others need belongs below",
	},
	{
		name: "placement is pure", from: []string{"scheduler/place/...", "scheduler/constraint"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "net/http", "os", "io", "context", "math/rand", "math/rand/v2", "sync"},
		reason:  "the same snapshot must give the same answer, in the service, in a replay and in a test",
	},
	{
		name: "ranking, quotas and draws stand alone", from: []string{"scheduler/place/ranking", "scheduler/place/quota", "scheduler/place/splitmix"},
		forbids: []string{"internal/gpu", "scheduler/...", "third-party"},
		reason:  "what ranks and what teams were promised can be read, and tested, without a word about GPUs",
	},
	{
		name: "the forecast knows no nodes", from: []string{"scheduler/place/forecast"},
		forbids: []string{"internal/gpu", "scheduler/place", "scheduler/place/quota", "scheduler/place/ranking", "scheduler/constraint", "third-party"},
		reason:  "what is expected depends on amounts alone; the planner translates nodes and requests once",
	},
	{
		name: "a cluster knows no requests", from: []string{"scheduler/place/internal/cluster"},
		forbids: []string{"scheduler/place", "scheduler/place/internal/fit", "scheduler/place/internal/score", "scheduler/place/internal/evict", "scheduler/place/outlook"},
		reason:  "what is booked where is right or wrong whatever is asked for next",
	},
	{
		name: "what fits, what it is worth and who must go are told apart", from: []string{"scheduler/place/internal/fit", "scheduler/place/internal/score", "scheduler/place/internal/evict", "scheduler/place/outlook"},
		forbids: []string{"scheduler/place"},
		reason:  "each can be read without the planner, which puts them together",
	},
	{
		name: "scores and evictions know nothing of each other", from: []string{"scheduler/place/internal/score"}, direct: true,
		forbids: []string{"scheduler/place/internal/evict", "scheduler/place/quota", "scheduler/place/outlook"},
		reason:  "what a place is worth does not depend on who would have to leave it",
	},
	{
		name: "decisions are pure", from: []string{"scheduler/decide"}, direct: true,
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "os", "io", "context", "math/rand", "math/rand/v2", "sync"},
		reason:  "a decision is made of a transaction alone: what it reads is under the lock, and nothing waits there",
	},
	{
		name: "the state is below all who use it", from: []string{"scheduler/state", "scheduler/record"},
		forbids: []string{"scheduler/decide", "scheduler/leader", "scheduler/reconcile", "scheduler/show", "scheduler/server/..."},
		reason:  "there is one model of the cluster, and it can be read without knowing what is done with it",
	},
	{
		name: "what decides, what reconciles and what shows are apart", from: []string{"scheduler/decide"},
		forbids: []string{"scheduler/leader", "scheduler/reconcile", "scheduler/show", "scheduler/server/..."},
		reason:  "each can be read alone",
	},
	{
		name: "the laboratory stands outside", from: []string{"device/...", "driver/...", "scheduler/...", "plugin/...", "internal/...", "e2e/..."},
		forbids: []string{"lab/..."},
		reason:  "code that plays a cluster must not reach the program that places work on a real one",
	},
	{
		name: "the laboratory plays the planner", from: []string{"lab/..."},
		forbids: []string{"device/...", "driver/...", "github.com/hashicorp/nomad/...", "net/http"},
		reason:  "a replay is the planner's own, on a machine without Nomad and GPUs",
	},
	{
		name: "accounting is pure", from: []string{"scheduler/ledger"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "os", "context", "sync", "scheduler/state", "scheduler/config", "scheduler/view"},
		reason:  "the same records must give the same bill, whoever stores them",
	},
	{
		name: "what reconciles acts through decisions", from: []string{"scheduler/reconcile"},
		forbids: []string{"scheduler/leader", "scheduler/show", "scheduler/server/..."},
		reason:  "the loop is given who records and who acts, so that a test can play both",
	},
	{
		name: "what shows decides nothing", from: []string{"scheduler/show", "scheduler/view"},
		forbids: []string{"scheduler/decide", "scheduler/leader", "scheduler/reconcile", "scheduler/server/..."},
		reason:  "looking must not change what is decided",
	},
	{
		name: "traces know nothing of the cluster", from: []string{"scheduler/trace"},
		forbids: []string{"scheduler/...", "github.com/hashicorp/nomad/..."},
		reason:  "who traces says in a few words what may leave the service: no job, token or variable is in reach here",
	},
	{
		name: "the API knows no decider", from: []string{"scheduler/server/..."},
		forbids: []string{"scheduler/state", "scheduler/decide", "scheduler/leader", "scheduler/reconcile", "scheduler/show"},
		reason:  "requests come from anybody: what they may ask for is a few methods of interfaces",
	},
	{
		name: "test scenes are for tests", from: []string{"scheduler/..."}, except: []string{"scheduler/servicetest", "scheduler/nomad/nomadtest", "scheduler/trace/tracetest"},
		forbids: []string{"scheduler/trace/tracetest", "scheduler/servicetest", "scheduler/nomad/nomadtest", "scheduler/view/viewtest", "scheduler/reserve/reservetest", "testing"},
		reason:  "what plays Nomad must not reach a program",
	},
	{
		name: "container specifications are pure", from: []string{"driver/spec"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "net/http", "os", "os/exec", "github.com/containerd/containerd/v2/client"},
		reason:  "what a task may touch is decided by values alone, so that a table of tests can show all of it",
	},
	{
		name: "the config of a task is read without Nomad", from: []string{"internal/taskconfig", "internal/hclform"},
		forbids: []string{"device/...", "driver/...", "scheduler/...", "github.com/hashicorp/nomad/..."},
		reason:  "the placement service has it too, without the packages of Nomad under the Business Source License",
	},
	{
		name: "seats are decided apart", from: []string{"driver/seats"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "os", "os/exec", "math/rand", "math/rand/v2", "driver", "driver/spec", "driver/runtime", "third-party"},
		reason:  "who is on a GPU, and what is done after a crash, is tried against simulated hardware, with every step killed",
	},
	{
		name: "one caller of containerd", from: []string{"driver/..."}, except: []string{"driver/runtime"}, direct: true,
		forbids: []string{"github.com/containerd/containerd/v2/client"},
		reason:  "containerd dies and comes back: one place knows what its errors then mean",
	},
	{
		name: "what the device plugin decides knows no hardware", from: []string{"device/config", "device/registry", "device/health", "device/occupancy", "device/plan", "device/telemetry"},
		forbids: []string{"device", "device/nvidia", "device/amd", "device/intel", "device/ascend", "device/dcmi", "device/sysfs", "device/sim", "device/cuda", "github.com/NVIDIA/..."},
		reason:  "what was seen is handed in: a configuration is checked on any machine, and a plan in a table of tests",
	},
	{
		name: "a plan is made of what is handed in", from: []string{"device/plan", "device/health"}, direct: true,
		forbids: []string{"os", "os/exec", "io", "net", "context", "sync/atomic", "internal/statedir", "device/datafile"},
		reason:  "the same survey, configuration and leases give the same groups: Nomad takes any difference for a change of the node",
	},
	{
		name: "the simulator is hardware", from: []string{"device/sim"},
		forbids: []string{"device", "device/nvidia", "device/amd", "device/intel", "device/ascend", "device/dcmi", "device/sysfs", "device/mps"},
		reason:  "the simulator stands below NVML and the kernel's files, so that what is tested on it is what runs on a GPU",
	},
	{
		name: "backends do not know each other", from: []string{"device/nvidia", "device/sysfs"},
		forbids: []string{"device", "device/sim", "device/mps", "device/amd", "device/intel", "device/ascend"},
		reason:  "a vendor is added or removed without a look at the others",
	},
	{
		name: "AMD's backend knows no other", from: []string{"device/amd"},
		forbids: []string{"device", "device/sim", "device/mps", "device/nvidia", "device/intel", "device/ascend", "github.com/NVIDIA/..."},
		reason:  "a vendor is added or removed without a look at the others",
	},
	{
		name: "Intel's backend knows no other", from: []string{"device/intel"},
		forbids: []string{"device", "device/sim", "device/mps", "device/nvidia", "device/amd", "device/ascend", "github.com/NVIDIA/..."},
		reason:  "a vendor is added or removed without a look at the others",
	},
	{
		name: "Huawei's backend knows no other", from: []string{"device/ascend", "device/dcmi"},
		forbids: []string{"device", "device/sim", "device/mps", "device/nvidia", "device/amd", "device/intel", "github.com/NVIDIA/..."},
		reason:  "a vendor is added or removed without a look at the others",
	},
	{
		name: "NVML has one reader", from: []string{"driver/...", "scheduler/...", "internal/..."},
		forbids: []string{"github.com/NVIDIA/..."},
		reason:  "NVML calls can hang: only the device plugin talks to it, where each call is bounded",
	},
}

// pkg is what "go list" tells of a package.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	var out []byte
	for _, dir := range []string{root, filepath.Join(root, "lab")} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
		cmd.Dir = dir
		one, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list in %s: %v", dir, err)
		}
		out = append(out, one...)
	}
	all := map[string]*pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all[p.ImportPath] = &p
	}
}

func TestImportsFollowTheRules(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, p := range all {
				if !matchesAny(r.from, p.ImportPath) || slices.Contains(r.except, p.ImportPath) {
					continue
				}
				for _, via := range reach(all, p, r.direct) {
					for _, imported := range via.Imports {
						if path := strings.TrimPrefix(imported, module); path != p.ImportPath && matchesAny(r.forbids, path) {
							t.Errorf("%s imports %s (in %s): %s", p.ImportPath, path, via.ImportPath, r.reason)
						}
					}
				}
			}
		})
	}
}

// reach lists a package and, unless only what it imports itself counts, all of ours
// that it imports through others.
func reach(all map[string]*pkg, from *pkg, direct bool) []*pkg {
	list := []*pkg{from}
	if direct {
		return list
	}
	for i := 0; i < len(list); i++ {
		for _, imported := range list[i].Imports {
			if p := all[strings.TrimPrefix(imported, module)]; p != nil && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	return list
}

// A rule about a package that was renamed would hold for ever.
func TestRulesNamePackagesThatExist(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		for _, pattern := range slices.Concat(r.from, r.forbids, r.except) {
			_, ours := all[pattern]
			top, _, _ := strings.Cut(pattern, "/")
			if path, below := strings.CutSuffix(pattern, "/..."); below {
				for name := range all {
					ours = ours || name == path || strings.HasPrefix(name, path+"/")
				}
			}
			if slices.Contains([]string{"device", "driver", "scheduler", "internal", "plugin", "e2e", "lab"}, top) && !ours {
				t.Errorf("%s: there is no package %s", r.name, pattern)
			}
		}
	}
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, path) })
}

func matches(pattern, path string) bool {
	if pattern == "third-party" {
		return strings.Contains(strings.SplitN(path, "/", 2)[0], ".")
	}
	prefix, below := strings.CutSuffix(pattern, "/...")
	return path == prefix || below && strings.HasPrefix(path, prefix+"/")
}

func TestPatternsMatch(t *testing.T) {
	for _, test := range []struct {
		pattern, path string
		want          bool
	}{
		{"device/...", "device", true},
		{"device/...", "device/sim", true},
		{"device/...", "devices", false},
		{"device", "device/sim", false},
		{"third-party", "github.com/x/y", true},
		{"third-party", "encoding/json", false},
	} {
		if got := matches(test.pattern, test.path); got != test.want {
			t.Errorf("matches(%q, %q) = %v", test.pattern, test.path, got)
		}
	}
}

// clock lists what of package time asks what time it is, or waits.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// What is pure may use durations and instants, but not ask for them.
func TestPurePackagesHaveNoClock(t *testing.T) {
	for _, p := range packages(t) {
		if !matchesAny([]string{"internal/gpu", "scheduler/place/...", "scheduler/constraint", "scheduler/decide", "scheduler/record", "driver/spec", "internal/taskconfig"}, p.ImportPath) {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok || !slices.Contains(clock, selector.Sel.Name) {
					return true
				}
				if x, ok := selector.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.%s: the caller passes the time in", fset.Position(n.Pos()), selector.Sel.Name)
				}
				return true
			})
		}
	}
}
