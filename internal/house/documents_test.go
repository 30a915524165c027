package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclparse"
)

var root = filepath.Join("..", "..")

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The versions that the README names are those of e2e/versions, the nested
// modules build them, and go.mod asks for that Go.
func TestVersionsStandInOnePlace(t *testing.T) {
	versions := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^([A-Z_]+)=(\S+)$`).FindAllStringSubmatch(read(t, "e2e/versions"), -1) {
		versions[match[1]] = match[2]
	}
	for path, wants := range map[string][]string{
		"README.md":                   {"Nomad " + versions["NOMAD_VERSION"], "containerd " + versions["CONTAINERD_OLDEST"], versions["CONTAINERD_VERSION"], "Debian " + versions["DEBIAN_VERSION"], "Go " + versions["GO_VERSION"]},
		"e2e/tools/nomad/go.mod":      {"github.com/hashicorp/nomad v" + versions["NOMAD_VERSION"]},
		"e2e/tools/containerd/go.mod": {"github.com/containerd/containerd/v2 v" + versions["CONTAINERD_VERSION"]},
		"e2e/tools/runc/go.mod":       {"github.com/opencontainers/runc v" + versions["RUNC_VERSION"]},
		"go.mod":                      {"go " + versions["GO_VERSION"], "github.com/hashicorp/nomad v" + versions["NOMAD_VERSION"]},
	} {
		text := read(t, path)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q, as e2e/versions does", path, want)
			}
		}
	}
}

// What a reader copies out of the documentation must at least be HCL.
func TestHCLInDocumentsParses(t *testing.T) {
	blocks := 0
	for _, glob := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, glob))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for n, block := range regexp.MustCompile("(?ms)^```hcl\n(.*?)^```").FindAllSubmatch(text, -1) {
				blocks++
				if _, diags := hclparse.NewParser().ParseHCL(block[1], path); diags.HasErrors() {
					t.Errorf("block %d: %v\n%s", n+1, diags, block[1])
				}
			}
		}
	}
	if blocks == 0 {
		t.Error("there is no HCL in any document")
	}
}

// testNames are the tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			names[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// What other drivers' users rely on is listed in full where they look for it.
func TestConformanceTestsAreListed(t *testing.T) {
	text := read(t, "docs/driver.md")
	for name := range testNames(t) {
		if strings.HasPrefix(name, "TestConformance_") || strings.HasPrefix(name, "TestRoblox_") {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("docs/driver.md does not list %s", name)
			}
		}
	}
}

// A document that names a make target, a test or a file of ours names one that
// exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile, tests := read(t, "GNUmakefile"), testNames(t)
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(documents, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		text := read(t, strings.TrimPrefix(path, root+"/"))
		for _, match := range regexp.MustCompile("`(?:sudo )?make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s: there is no \"make %s\"", filepath.Base(path), match[1])
			}
		}
		for _, match := range regexp.MustCompile("`(Test[A-Z][A-Za-z_]+)`").FindAllStringSubmatch(text, -1) {
			if !tests[match[1]] {
				t.Errorf("%s: there is no test %s", filepath.Base(path), match[1])
			}
		}
		for _, match := range regexp.MustCompile(`\]\(([^)#:]+)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s: link to %s: %v", filepath.Base(path), match[1], err)
			}
		}
	}
}
