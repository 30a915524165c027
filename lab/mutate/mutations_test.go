// SPDX-License-Identifier: MPL-2.0

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// subject holds one occasion of every kind.
const subject = `package p

import "sync"

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(list []int, limit int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range list {
		if v > limit && v != 0 {
			return errLimit
		}
		c.n += v
	}
	return nil
}
`

func TestFind_EveryKindOfMistake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.go")
	if err := os.WriteFile(file, []byte(subject), 0o600); err != nil {
		t.Fatal(err)
	}
	mutations, err := find([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // kind: a line that the mutated source has
		"negated condition":       "if !(v > limit && v != 0) {",
		"boundary":                "if v >= limit && v != 0 {",
		"logic":                   "if v > limit || v != 0 {",
		"off by one":              "if v > limit && v != 1 {",
		"error to nil":            "return nil\n\t\t}",
		"dropped statement":       "}\n\t\t\n\t}",
		"skipped first iteration": "if mutateFirst { mutateFirst = false; continue }",
		"removed lock":            "error {\n\t\n\t\n\tfor",
	}
	var kinds []string
	for _, m := range mutations {
		kinds = append(kinds, m.kind)
		mutated := string(m.apply([]byte(subject)))
		if !strings.Contains(mutated, want[m.kind]) {
			t.Errorf("%s: %q is not in\n%s", m.kind, want[m.kind], mutated)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "p.go", mutated, 0); err != nil {
			t.Errorf("%s: %v", m.kind, err)
		}
	}
	slices.Sort(kinds)
	if len(kinds) != len(want) || len(slices.Compact(kinds)) != len(want) {
		t.Errorf("found %v, want each of the %d kinds once", kinds, len(want))
	}
}

func TestMeasure_TellsWhatTestsNotice(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.com/p\n\ngo 1.26\n",
		"p.go":      "package p\n\nimport \"errors\"\n\nconst least = 4 * two\n\nconst two = 2\n\nvar errLater = errors.New(\"later\")\n\nfunc Positive(n int) bool {\n\tif n > 0 {\n\t\treturn true\n\t}\n\treturn false\n}\n\nfunc Small(n int) bool {\n\tswitch {\n\tcase n > 8:\n\t\treturn false\n\t}\n\treturn true\n}\n\nfunc Later() (func() int, error) {\n\treturn func() int {\n\t\treturn two\n\t}, errLater\n}\n",
		"p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestPositive(t *testing.T) {\n\tif _, err := Later(); err == nil || !Positive(5) || Positive(-5) || !Small(8) || least != 8 {\n\t\tt.Fatal()\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	// Seven mutations: the negated condition is noticed, 5 for 4 in a constant, which no
	// line of a profile holds, >= for > in a case, which is asked without being taken, and
	// the error behind a function literal.
	// In Positive, >= for > and 1 for 0 are not, since no test asks for 0 or 1, nor is 9
	// for 8 in Small.
	all, err := allTests(".", []string{"-count=1"})
	if err != nil {
		t.Fatal(err)
	}
	ways := []noticing{all}
	for range 2 { // the second time from what is known
		r, err := findReach([]string{"."}, ".", filepath.Join(dir, "known"), regexp.MustCompile("^$"))
		if err != nil {
			t.Fatal(err)
		}
		ways = append(ways, r.test)
	}
	for _, way := range ways {
		got, err := measure(".", way, draw{count: 10, seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if want := (tally{tried: 7, killed: 4}); got != want {
			t.Errorf("measure = %+v, want %+v", got, want)
		}
	}
}
