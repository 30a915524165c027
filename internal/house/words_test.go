// SPDX-License-Identifier: MPL-2.0

package house

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

// Bounds on what people have to read. Lower them when there is less.
const (
	wordsOfTheREADME = 900
	wordsForUsers    = 45_000 // README.md, CHANGELOG.md and docs, without docs/design
	wordsInAll       = 65_000 // the same with docs/design
	headlessComments = 100    // lines of Go comments
)

// forUsers says that a document is for people who use the product, not change it.
func forUsers(path string) bool {
	return path == "README.md" || path == "CHANGELOG.md" || strings.HasPrefix(path, "docs/") && !strings.HasPrefix(path, "docs/design/")
}

// remark is a comment, which readers do not see.
var remark = regexp.MustCompile(`(?s)<!--.*?-->`)

// Documents are short enough to be read.
func TestDocumentsAreShort(t *testing.T) {
	users, all := 0, 0
	for _, path := range documents.All(t, root) {
		words := len(strings.Fields(remark.ReplaceAllString(read(t, path), "")))
		if path == "README.md" && words > wordsOfTheREADME {
			t.Errorf("%s has %d words, at most %d are wanted", path, words, wordsOfTheREADME)
		}
		if forUsers(path) {
			users += words
		}
		if forUsers(path) || strings.HasPrefix(path, "docs/") {
			all += words
		}
	}
	t.Logf("%d words for users, %d in all", users, all)
	if users > wordsForUsers {
		t.Errorf("users' documents have %d words, at most %d are wanted", users, wordsForUsers)
	}
	if all > wordsInAll {
		t.Errorf("all documents have %d words, at most %d are wanted", all, wordsInAll)
	}
}

// headless finds relative clauses that stand without the noun that they describe.
var headless = regexp.MustCompile(`\b(?:[Ww]hat (?:is|was|has|it|they|does|can|may)|[Tt]hat which|[Ee]ach that|[Oo]f which|[Ss]o many|[Aa]new)\b|\bWho [a-z]+s\b`)

// Comments name their subjects.
func TestCommentsNameTheirSubjects(t *testing.T) {
	packages, lines := map[string]int{}, 0
	for _, path := range documents.Files(t, root, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, comment := range file.Comments {
			for _, part := range comment.List {
				for _, line := range strings.Split(part.Text, "\n") {
					if headless.MatchString(line) {
						packages[filepath.Dir(path)]++
						lines++
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		t.Logf("%4d %s", packages[name], name)
	}
	if lines > headlessComments {
		t.Errorf("%d lines of comments have headless clauses, at most %d are wanted; -v counts them per package", lines, headlessComments)
	}
}

// listOfTests links the sections of users' documents to the tests that hold them.
const listOfTests = "docs/design/tests.md"

// Users' documents name no tests in their text. A comment at the end of a section names
// those that hold it, and a generated page lists them.
func TestListOfTests(t *testing.T) {
	tests := testNames(t)
	list := "# Tests behind the documents\n\n" +
		"A comment at the end of a section in a user's document names the tests that hold it, and scripts by their files. " +
		"`go test ./internal/house -run TestListOfTests -update` makes this page of them.\n"
	for _, path := range documents.All(t, root) {
		if !forUsers(path) {
			continue
		}
		text, rows := read(t, path), ""
		for _, match := range regexp.MustCompile("`Test[A-Z]\\w+`").FindAllString(remark.ReplaceAllString(text, ""), -1) {
			t.Errorf("%s: put %s into a comment at the end of its section", path, match)
		}
		for _, section := range regexp.MustCompile(`(?m)^#+ `).Split(text, -1)[1:] {
			var links []string
			for _, comment := range remark.FindAllString(section, -1) {
				for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+|[a-z-]+\.txt\b`).FindAllString(comment, -1) {
					if tests[name] == "" {
						t.Errorf("%s: there is no test %s", path, name)
					}
					links = append(links, fmt.Sprintf("[%s](../../%s)", name, tests[name]))
				}
			}
			if title, _, _ := strings.Cut(section, "\n"); len(links) > 0 {
				rows += "- " + strings.NewReplacer("[", "", "]", "").Replace(title) + ": " + strings.Join(links, ", ") + "\n"
			}
		}
		if rows != "" {
			list += fmt.Sprintf("\n## [%s](../../%s)\n\n%s", path, path, rows)
		}
	}
	golden.Compare(t, filepath.Join("..", "..", "..", listOfTests), list)
}
