// SPDX-License-Identifier: MPL-2.0

package defaults

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/oci"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the record anew")

// record is the file that the driver's tests read.
var record = filepath.Join("..", "..", "..", "driver", "spec", "testdata", "docker-defaults.json")

// TestRecord holds the record against Docker's code of the version in go.mod.
func TestRecord(t *testing.T) {
	spec := oci.DefaultLinuxSpec()
	profile, err := seccomp.GetDefaultProfile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	// Those of sysfs lie there as many times as the machine has CPUs.
	masked := slices.DeleteFunc(spec.Linux.MaskedPaths, func(path string) bool { return filepath.Dir(filepath.Dir(path)) == "/sys/devices/system/cpu" })
	got, err := json.MarshalIndent(map[string]any{
		"version":      "Docker 28.5.2",
		"capabilities": spec.Process.Capabilities.Bounding,
		"masked":       masked,
		"readonly":     spec.Linux.ReadonlyPaths,
		"mounts":       spec.Mounts,
		"devices":      spec.Linux.Resources.Devices,
		"namespaces":   spec.Linux.Namespaces,
		"propagation":  spec.Linux.RootfsPropagation,
		"sysctls":      assigned(t, "github.com/docker/docker", "daemon/oci_linux.go"),
		"cri sysctls":  assigned(t, "github.com/containerd/containerd/v2", "internal/cri/server/podsandbox/sandbox_run_linux.go"),
		"seccomp":      syscalls(profile),
		// Without limits of its own a container has those of the program that starts it.
		"limits":     followsFrom(t, spec.Process.Rlimits, "github.com/docker/docker", "daemon/config/config_linux.go", "cfg.Ulimits = make(map[string]*container.Ulimit)"),
		"cri limits": followsFrom(t, []specs.POSIXRlimit(nil), "github.com/containerd/containerd/v2", "internal/cri/opts/spec_opts.go", "s.Process.Rlimits = nil"),
		// Both set 0 where nothing was asked for.
		"oom score":     followsFrom(t, 0, "github.com/docker/docker", "daemon/oci_linux.go", "WithOOMScore(&c.HostConfig.OomScoreAdj)"),
		"cri oom score": followsFrom(t, 0, "github.com/containerd/containerd/v2", "internal/cri/opts/spec_linux_opts.go", "adj := int(resources.GetOomScoreAdj())"),
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(record, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what Docker's code says; run with -update", record)
	}
}

// followsFrom is a default that a line of code makes, in a package that cannot be
// imported here.
func followsFrom[T any](t *testing.T, value T, module, file, line string) T {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), file))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), line) != 1 {
		t.Errorf("%s of %s does not say %q once: what follows from it may have changed", file, module, line)
	}
	return value
}

// assigned are the network's settings that a file of a module assigns, in packages that
// cannot be imported here: KEY=VALUE.
func assigned(t *testing.T, module, file string) []string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := func(x ast.Expr) string {
		if literal, ok := x.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			value, _ := strconv.Unquote(literal.Value)
			return value
		}
		return ""
	}
	var all []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		statement, ok := n.(*ast.AssignStmt)
		if !ok || len(statement.Lhs) != 1 {
			return true
		}
		if index, ok := statement.Lhs[0].(*ast.IndexExpr); ok && strings.HasPrefix(text(index.Index), "net.") {
			all = append(all, text(index.Index)+"="+text(statement.Rhs[0]))
		}
		return true
	})
	slices.Sort(all)
	return all
}

// syscalls are the system calls that a profile allows: at all, and only with
// certain arguments.
func syscalls(profile *specs.LinuxSeccomp) map[string][]string {
	allowed := map[string][]string{}
	for _, rule := range profile.Syscalls {
		kind := "always"
		if len(rule.Args) > 0 {
			kind = "with arguments"
		}
		if rule.Action == specs.ActAllow {
			allowed[kind] = append(allowed[kind], rule.Names...)
		}
	}
	for kind := range allowed {
		slices.Sort(allowed[kind])
		allowed[kind] = slices.Compact(allowed[kind])
	}
	return allowed
}
