// SPDX-License-Identifier: MPL-2.0

package house

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

var root = filepath.Join("..", "..")

func read(t *testing.T, path string) string {
	t.Helper()
	return documents.Read(t, root, path)
}

// The versions that the documents and the doctor name are those of e2e/versions, the
// nested modules build them, and go.mod asks for that Go.
func TestVersionsStandInOnePlace(t *testing.T) {
	versions := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^([A-Z_]+)=(\S+)$`).FindAllStringSubmatch(read(t, "e2e/versions"), -1) {
		versions[match[1]] = match[2]
	}
	for path, wants := range map[string][]string{
		"README.md":   {"Nomad " + versions["NOMAD_VERSION"] + " and " + versions["NOMAD_NEWEST"], "containerd " + versions["CONTAINERD_OLDEST"], versions["CONTAINERD_VERSION"], "Debian " + versions["DEBIAN_VERSION"], "Go " + versions["GO_VERSION"]},
		"docs/api.md": {"Nomad " + versions["NOMAD_VERSION"]},
		"docs/design/testing.md": {
			"| Nomad | " + versions["NOMAD_VERSION"] + " |",
			"| | " + versions["NOMAD_NEWEST"] + " | `make test-nomad` on " + versions["NOMAD_NEWEST_DATE"] + " at " + versions["NOMAD_NEWEST_COMMIT"] + ": " + versions["NOMAD_NEWEST_PASSED"] + " tests",
			"| | " + versions["NOMAD_UNRUN"] + " | not run",
			"| containerd, runc | " + versions["CONTAINERD_OLDEST"] + " with " + versions["RUNC_OLDEST"],
			versions["CONTAINERD_VERSION"] + " with " + versions["RUNC_VERSION"],
			versions["CONTAINERD_VM"] + " with " + versions["RUNC_VM"],
		},
		"internal/version/nomad.go":   {`OldestNomad = "` + versions["NOMAD_VERSION"], `NewestNomad = "` + versions["NOMAD_NEWEST"]},
		"e2e/tools/nomad/go.mod":      {"github.com/hashicorp/nomad v" + versions["NOMAD_VERSION"]},
		"e2e/tools/containerd/go.mod": {"github.com/containerd/containerd/v2 v" + versions["CONTAINERD_VERSION"]},
		"e2e/tools/runc/go.mod":       {"github.com/opencontainers/runc v" + versions["RUNC_VERSION"]},
		"go.mod":                      {"go " + versions["GO_VERSION"], "github.com/hashicorp/nomad v" + versions["NOMAD_VERSION"]},
	} {
		text := read(t, path)
		for _, want := range wants {
			if want == "" || !strings.Contains(text, want) {
				t.Errorf("%s does not say %q, as e2e/versions does", path, want)
			}
		}
	}
}

// What a reader copies out of the documentation must at least be HCL.
func TestHCLInDocumentsParses(t *testing.T) {
	for _, block := range documents.HCL(t, root) {
		if _, diags := hclparse.NewParser().ParseHCL([]byte(block.Text), block.Path); diags.HasErrors() {
			t.Errorf("%s:%d: %v", block.Path, block.Line, diags)
		}
	}
}

// testNames are the tests of the repository, and a file that has each.
func testNames(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, path := range documents.Files(t, root, ".go") {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			names[match[1]] = path
		}
	}
	for _, path := range documents.Files(t, root, ".txt") {
		if strings.Contains(path, "/testdata/script/") {
			names[filepath.Base(path)] = path
		}
	}
	return names
}

// What other drivers' users rely on is listed in full where they look for it.
func TestConformanceTestsAreListed(t *testing.T) {
	const page = "docs/design/driver-tests.md"
	text := read(t, page)
	for name := range testNames(t) {
		if strings.HasPrefix(name, "TestConformance_") || strings.HasPrefix(name, "TestRoblox_") {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not list %s", page, name)
			}
		}
	}
}

// A document that names a make target, a test, a file of ours or a heading in it
// names one that exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile, tests := read(t, "GNUmakefile"), testNames(t)
	for _, path := range documents.All(t, root) {
		text := read(t, path)
		for _, match := range regexp.MustCompile("`(?:sudo )?make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s: there is no \"make %s\"", path, match[1])
			}
		}
		for _, match := range regexp.MustCompile("`(Test[A-Z][A-Za-z_]+)`").FindAllStringSubmatch(text, -1) {
			if tests[match[1]] == "" {
				t.Errorf("%s: there is no test %s", path, match[1])
			}
		}
		for _, match := range regexp.MustCompile(`\]\(([^)#: ]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(text, -1) {
			target := filepath.Join(filepath.Dir(path), match[1])
			if match[1] == "" {
				target = path
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s: %v", path, match[1], err)
			} else if match[2] != "" && !headings(read(t, target))[match[2]] {
				t.Errorf("%s: %s has no heading #%s", path, target, match[2])
			}
		}
	}
}

// headings are the names under which a document's headings can be linked to.
func headings(text string) map[string]bool {
	names := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N}\- _]`).ReplaceAllString(strings.ToLower(match[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}

// Prose, names and messages are spelled as Nomad, containerd and NVIDIA spell.
func TestSpellingIsAmerican(t *testing.T) {
	british := []string{
		"behaviour", "colour", "favour", "honour", "neighbour", "catalogue", "cancelled", "isation", "initialise", "initialisi",
		"recognise", "recognisi", "optimise", "optimisi", "serialise", "serialisi", "normalise", "normalisi", "summarise", "summarisi",
	}
	for _, path := range documents.Files(t, root, ".go", ".md") {
		if filepath.Base(path) == "documents_test.go" {
			continue // names them
		}
		text := strings.ToLower(read(t, path))
		for _, word := range british {
			if at := strings.Index(text, word); at >= 0 {
				t.Errorf("%s:%d: %q", path, 1+strings.Count(text[:at], "\n"), word)
			}
		}
	}
}

// Documents and comments say who or what acts, in the words of the field.
func TestProseNamesWhoActs(t *testing.T) {
	vague := regexp.MustCompile(`(?i)\b(?:nobody|somebody|anybody|becomes of|by coins|in thought|as as)\b`)
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for _, path := range documents.Files(t, root, ".md") {
		for _, word := range vague.FindAllString(code.ReplaceAllString(read(t, path), ""), -1) {
			t.Errorf("%s: %q", path, word)
		}
	}
	for _, path := range documents.Files(t, root, ".go") {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, filepath.Join(root, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, comment := range file.Comments {
			for _, line := range comment.List {
				for _, word := range vague.FindAllString(line.Text, -1) {
					t.Errorf("%s: %q", files.Position(line.Pos()), word)
				}
			}
		}
	}
}

// readers are who reads the HCL of documents, by the word that it begins with. That a test
// hands it to them is for each of the tests to keep.
var readers = map[string]string{
	"plugin": "TestPluginBlocksInDocumentsAreValid", "plugin_dir": "TestPluginBlocksInDocumentsAreValid", "data_dir": "TestPluginBlocksInDocumentsAreValid",
	"simulation": "TestPluginBlocksInDocumentsAreValid",
	"config":     "TestPluginBlocksInDocumentsAreValid, TestTasksInDocumentsAreValid; Docker's driver, in any-driver.md, reads its own",
	"gpu":        "TestPluginBlocksInDocumentsAreValid, TestTasksInDocumentsAreValid",
	"mounts":     "TestTasksInDocumentsAreValid",
	"job":        "Nomad, in TestNomadCommand", "group": "Nomad, in TestNomadCommand", "task": "Nomad, in TestNomadCommand", "meta": "Nomad, in TestNomadCommand", "device": "Nomad, in TestNomadCommand",
	"queue": "TestConfigurationsInDocumentsAreValid", "ledger": "TestConfigurationsInDocumentsAreValid", "telemetry": "TestConfigurationsInDocumentsAreValid",
	"scaling":   "none: it is the Nomad Autoscaler's",
	"namespace": "none: it is a policy of Nomad's ACLs",
}

// No HCL of a document goes unread.
func TestHCLInDocumentsHasAReader(t *testing.T) {
	seen := map[string]bool{}
	for _, block := range documents.HCL(t, root) {
		word := documents.FirstWord(block)
		if seen[word] = true; readers[word] == "" {
			t.Errorf("%s:%d: no test parses what begins with %q", block.Path, block.Line, word)
		}
	}
	for word := range readers {
		if !seen[word] {
			t.Errorf("no document has HCL that begins with %q", word)
		}
	}
}
