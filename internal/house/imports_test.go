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

// rule forbids imports. Paths below our module are written without it; one that
// ends in "/..." means everything below as well.
type rule struct {
	name    string
	from    []string
	forbids []string
	// except lists packages of from that the rule does not bind.
	except []string
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
		name: "placement is pure", from: []string{"scheduler/place", "scheduler/constraint"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "net/http", "os", "io", "context", "math/rand", "math/rand/v2", "sync"},
		reason:  "the same snapshot must give the same answer, in the service, in a replay and in a test",
	},
	{
		name: "container specifications are pure", from: []string{"driver/spec"},
		forbids: []string{"github.com/hashicorp/nomad/...", "net", "net/http", "os", "os/exec", "github.com/containerd/containerd/v2/client"},
		reason:  "what a task may touch is decided by values alone, so that a table of tests can show all of it",
	},
	{
		name: "one caller of containerd", from: []string{"driver/..."}, except: []string{"driver/runtime"},
		forbids: []string{"github.com/containerd/containerd/v2/client"},
		reason:  "containerd dies and comes back: one place knows what its errors then mean",
	},
	{
		name: "the simulator is hardware", from: []string{"device/sim"},
		forbids: []string{"device", "device/nvidia", "device/mps"},
		reason:  "the simulator stands below NVML, so that what is tested on it is what runs on a GPU",
	},
	{
		name: "backends do not know each other", from: []string{"device/nvidia", "device/sysfs"},
		forbids: []string{"device", "device/sim", "device/mps"},
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

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
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
				for _, imported := range p.Imports {
					if path := strings.TrimPrefix(imported, module); path != p.ImportPath && matchesAny(r.forbids, path) {
						t.Errorf("%s imports %s: %s", p.ImportPath, path, r.reason)
					}
				}
			}
		})
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
		if !slices.Contains([]string{"internal/gpu", "scheduler/place", "driver/spec"}, p.ImportPath) {
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
