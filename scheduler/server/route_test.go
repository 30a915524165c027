package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// routesOfNomad reads the routes below a job out of the source of the Nomad that
// this release is built with.
func routesOfNomad(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/nomad").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(out)), "command", "agent", "job_endpoint.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "JobSpecificRequest" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			if fun, ok := call.Fun.(*ast.SelectorExpr); ok && fun.Sel.Name == "HasSuffix" {
				if text, ok := call.Args[1].(*ast.BasicLit); ok {
					suffix, err := strconv.Unquote(text.Value)
					if err != nil {
						t.Fatal(err)
					}
					found = append(found, suffix)
				}
			}
			return true
		})
	}
	return found
}

// Every route below a job is decided, rechecked or passed on purpose: a new one in
// Nomad must not go by unseen.
func TestEveryRouteOfNomadIsKnown(t *testing.T) {
	routes := routesOfNomad(t)
	if len(routes) < 15 {
		t.Fatalf("only %d routes are found: %v", len(routes), routes)
	}
	for _, suffix := range routes {
		decided := slices.ContainsFunc(suffixes, func(s struct {
			suffix string
			kind   routeKind
		}) bool {
			return s.suffix == suffix
		})
		if !decided && !slices.Contains(otherSuffixes, suffix) {
			t.Errorf("%s is neither decided nor passed on purpose", suffix)
		}
		got := routeOf(httptest.NewRequest(http.MethodPut, "/v1/job/a"+suffix, nil)).kind
		if (got == passed) == decided {
			t.Errorf("%s: kind %d", suffix, got)
		}
	}
	for _, s := range otherSuffixes {
		if !slices.Contains(routes, s) {
			t.Errorf("Nomad has no route %s any more", s)
		}
	}
}
