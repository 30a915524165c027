// SPDX-License-Identifier: MPL-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// opening lists what finds a file by its path, by package.
var opening = map[string][]string{
	"os": {
		"Chmod", "Chown", "Chtimes", "Create", "CreateTemp", "DirFS", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll", "MkdirTemp",
		"Open", "OpenFile", "OpenInRoot", "OpenRoot", "ReadDir", "ReadFile", "Readlink", "Remove", "RemoveAll", "Rename",
		"Stat", "Symlink", "Truncate", "WriteFile",
	},
	"filepath": {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"unix": {
		"Chmod", "Chown", "Creat", "Link", "Lstat", "Mkdir", "Mkdirat", "Mkfifo", "Mknod", "Mount", "MoveMount", "Open", "OpenTree",
		"Openat", "Openat2", "Readlink", "Rename", "Rmdir", "Stat", "Statfs", "Symlink", "Unlink", "Unmount",
	},
}

// hostPaths are the functions of the driver that find files by paths in which no
// job, image, template or allocation has a say. What a tenant has a say in is
// opened by driver/rooted.
var hostPaths = map[string]struct{ functions, reason string }{
	"driver/auth.go":                            {"fromDockerConfig", "the operator's file with logins"},
	"driver/network/bridge.go":                  {"Bridges", "the host's /sys"},
	"driver/network/network.go":                 {"Create Remove Found", "the driver's state directory, and the operator's cni_path"},
	"driver/cgroups/cgroups.go":                 {"dirsBelow Tree Unified SwapAccounting", "control groups: that file system has no links"},
	"driver/cgroups/cores.go":                   {"SharedCPUs", "control groups: that file system has no links"},
	"driver/cgroups/empty.go":                   {"Processes removeDirs Write", "control groups: that file system has no links"},
	"driver/cgroups/cgroupstest/cgroupstest.go": {"Fake Fill", "a control group of a test's own"},
	"driver/diagnose.go":                        {"diagnosePrograms diagnoseSecurity", "the operator's init_path, and the host's /sys"},
	"driver/plugin.go":                          {"SetConfig", "the driver's state directory"},
	"driver/hosts.go":                           {"hostsFile gateway", "the host's own /etc/hosts and /proc"},
	"driver/join.go":                            {"join", "the driver's state directory"},
	"driver/create.go":                          {"oneUser", "the host's /proc"},
	"driver/output/mark.go":                     {"exists set Expire", "marks in the driver's state directory, by names that the driver made"},
	"driver/network.go":                         {"networkSysctls", "the host's /proc"},
	"driver/nodecheck.go":                       {"checkNode", "the host's /sys, and the operator's init_path"},
	"driver/hostdir/pipes.go":                   {"Create show bindEntry openEntry Follow Remove", "the driver's state directory; what daemons make is opened without links"},
	"driver/self/socket.go":                     {"Listen", "the directory of a task's socket, which the task cannot write to"},
	"driver/selfdir.go":                         {"create Remove", "the driver's state directory, by names that the driver made"},
	"driver/hostdir/shm.go":                     {"Create Remove", "the driver's state directory"},
	"driver/hostdir/hostdir.go":                 {"NamesOlderThan unmount unmountAlone", "the driver's state directory"},
	"driver/record/store.go":                    {"Write read Remove", "the driver's state directory, by names that the driver made"},
	"driver/runtime/runc.go":                    {"runcPath runcOn", "containerd's own PATH"},
	"driver/runtime/shim.go":                    {"shimSocket", "what containerd keeps"},
	"driver/runtime/shimloss.go":                {"killShim processes sameFile", "what containerd and the kernel keep of shims"},
	"driver/seathost.go":                        {"readBytes checkUsage", "control groups: that file system has no links"},
}

// TestTenantsPathsAreOpenedOnce: a path that is checked here and opened there is a
// way to the host for whoever can put a link in between.
func TestTenantsPathsAreOpenedOnce(t *testing.T) {
	used := map[string]bool{}
	for _, p := range packages(t) {
		if !matchesAny([]string{"driver/..."}, p.ImportPath) || p.ImportPath == "driver/rooted" {
			continue
		}
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, "github.com/cyphar/") || imported == "io/ioutil" {
				t.Errorf("%s imports %s: only driver/rooted resolves paths of tenants", p.ImportPath, imported)
			}
		}
		for _, name := range p.GoFiles {
			file := p.ImportPath + "/" + name
			for function, calls := range openings(t, filepath.Join(p.Dir, name)) {
				if slices.Contains(strings.Fields(hostPaths[file].functions), function) {
					used[file+" "+function] = true
					continue
				}
				t.Errorf("%s: %s calls %s: a path that a tenant has a say in is opened by driver/rooted, which resolves it once. If it is the host's alone, add the function to hostPaths, with the reason", file, function, strings.Join(calls, ", "))
			}
		}
	}
	for file, allowed := range hostPaths {
		for _, function := range strings.Fields(allowed.functions) {
			if !used[file+" "+function] {
				t.Errorf("hostPaths: %s in %s opens nothing; remove it from the list", function, file)
			}
		}
	}
}

// openings returns, by function, the calls in a file that find something by path.
func openings(t *testing.T, path string) map[string][]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, declaration := range file.Decls {
		function := "a declaration"
		if f, ok := declaration.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := selector.X.(*ast.Ident); ok && x.Obj == nil && slices.Contains(opening[x.Name], selector.Sel.Name) {
				found[function] = append(found[function], x.Name+"."+selector.Sel.Name)
			}
			return true
		})
	}
	return found
}
