// SPDX-License-Identifier: MPL-2.0

// Package golden compares what a test got with what lies in a file of its
// testdata folder, so that a change of a long text is read as a change of a
// file. "go test -update" writes the files again.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files anew")

// Compare fails the test where got is not the content of testdata/name.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); run with -update if that is right:\n%s", name, diff)
	}
}

// Between returns a page with text in place of what stands between the comments
// <!-- mark --> and <!-- /mark -->: what a test derives may so stand in a document.
func Between(t testing.TB, page, mark, text string) string {
	t.Helper()
	before, rest, found := strings.Cut(page, "<!-- "+mark+" -->\n")
	_, after, closed := strings.Cut(rest, "<!-- /"+mark+" -->")
	if !found || !closed {
		t.Fatalf("the page has no marks %q", mark)
	}
	return before + "<!-- " + mark + " -->\n" + text + "<!-- /" + mark + " -->" + after
}
