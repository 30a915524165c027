package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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

// A document that names a make target or a file of ours names one that exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile := read(t, "GNUmakefile")
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(documents, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		text := read(t, strings.TrimPrefix(path, root+"/"))
		for _, match := range regexp.MustCompile("`(?:sudo )?make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s: there is no \"make %s\"", filepath.Base(path), match[1])
			}
		}
		for _, match := range regexp.MustCompile(`\]\(([^)#:]+)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s: link to %s: %v", filepath.Base(path), match[1], err)
			}
		}
	}
}
