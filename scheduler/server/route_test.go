// SPDX-License-Identifier: MPL-2.0

package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// agentSource parses a file of the agent of the Nomad that this release is built with.
func agentSource(t *testing.T, name string) *ast.File {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/nomad").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "command", "agent", name), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// literals are the n-th arguments of the calls of some methods, where they are text.
func literals(t *testing.T, in ast.Node, n int, methods ...string) []string {
	t.Helper()
	var found []string
	ast.Inspect(in, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) <= n {
			return true
		}
		fun, isMethod := call.Fun.(*ast.SelectorExpr)
		text, isText := call.Args[n].(*ast.BasicLit)
		if isMethod && isText && text.Kind == token.STRING && slices.Contains(methods, fun.Sel.Name) {
			value, err := strconv.Unquote(text.Value)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, value)
		}
		return true
	})
	return found
}

// routesOfNomad are the routes below a job.
func routesOfNomad(t *testing.T) []string {
	t.Helper()
	for _, d := range agentSource(t, "job_endpoint.go").Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "JobSpecificRequest" {
			return literals(t, f, 1, "HasSuffix")
		}
	}
	return nil
}

// Every pattern of Nomad's server is listed: a new one must not go by unseen.
func TestEveryPatternOfNomadIsListed(t *testing.T) {
	patterns := literals(t, agentSource(t, "http.go"), 0, "Handle", "HandleFunc")
	if len(patterns) < 90 {
		t.Fatalf("only %d patterns are found: %v", len(patterns), patterns)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "routes-of-nomad.txt"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		kind, pattern, _ := strings.Cut(strings.TrimSpace(line), " ")
		pattern, since, _ := strings.Cut(strings.TrimSpace(pattern), "  since ")
		listed[pattern] = true
		if since == "" && !slices.Contains(patterns, pattern) {
			t.Errorf("Nomad has no pattern %s any more", pattern)
		}
		path := strings.TrimPrefix(pattern, "GET ")
		if strings.HasSuffix(path, "/") {
			path += "x"
		}
		if got := routeOf(httptest.NewRequest(http.MethodPut, path, nil)).kind; (got == passed) != (kind == "passed") {
			t.Errorf("%s is listed as %s, and is of kind %d", pattern, kind, got)
		}
	}
	for _, pattern := range patterns {
		if !listed[pattern] {
			t.Errorf("%s is neither decided nor passed on purpose: list it in testdata/routes-of-nomad.txt", pattern)
		}
	}
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
			route  route
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

// What is below Nomad's own paths reaches Nomad as it was sent, and nothing else does.
func TestNomadsPaths(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/jobs": true, "/v1/job/a/b": true, "/ui": true, "/ui/jobs": true,
		"/": false, "/gpu/": false, "/api/v1/gpu/cluster": false, "/metrics": false, "/v1": false, "/uid": false, "/v2/jobs": false,
	} {
		if got := isNomadPath(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// A server needs Nomad's address, something that decides and a logger.
func TestAServerNeedsItsParts(t *testing.T) {
	full := Config{Nomad: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()}
	if _, err := New(full); err != nil {
		t.Errorf("with all of them: %v", err)
	}
	for name, without := range map[string]func(*Config){
		"Nomad": func(c *Config) { c.Nomad = nil }, "a decider": func(c *Config) { c.Decider = nil }, "a logger": func(c *Config) { c.Logger = nil },
		"a limit": func(c *Config) { c.Limits.MaxBodyBytes = 0 },
	} {
		c := full
		without(&c)
		if _, err := New(c); err == nil {
			t.Errorf("without %s there is a server", name)
		}
	}
}
