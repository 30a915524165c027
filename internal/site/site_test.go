// SPDX-License-Identifier: MPL-2.0

package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// read is what a test sees of a page.
type read struct {
	ids     map[string]bool
	links   []string // href and src
	title   string
	current int // links of the contents to the page itself
}

func parse(t *testing.T, file string) read {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := html.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	r := read{ids: map[string]bool{}}
	for node := range root.Descendants() {
		if node.Type == html.ElementNode && node.Data == "title" && node.FirstChild != nil {
			r.title = node.FirstChild.Data
		}
		for _, a := range node.Attr {
			switch a.Key {
			case "id":
				if r.ids[a.Val] {
					t.Errorf("%s: two elements are called %q", file, a.Val)
				}
				r.ids[a.Val] = true
			case "href", "src":
				r.links = append(r.links, a.Val)
			case "aria-current":
				r.current++
			}
		}
	}
	return r
}

// Every document has a page with a title, and every link in the site leads somewhere.
func TestTheSiteIsWhole(t *testing.T) {
	root, out := filepath.Join("..", ".."), t.TempDir()
	if err := build(root, out); err != nil {
		t.Fatal(err)
	}
	s, err := open(root)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]read{}
	for _, document := range s.names() {
		name := target(document)
		pages[name] = parse(t, filepath.Join(out, name))
		if p := pages[name]; p.title == "" || strings.HasPrefix(p.title, " ") {
			t.Errorf("%s: the title is %q", name, p.title)
		}
	}
	for name, p := range pages {
		for _, to := range p.links {
			if strings.Contains(to, "://") {
				continue
			}
			file, fragment, _ := strings.Cut(to, "#")
			if file = path.Join(path.Dir(name), file); strings.HasPrefix(to, "#") {
				file = name
			}
			if _, err := os.Stat(filepath.Join(out, file)); err != nil {
				t.Errorf("%s: link %q: %v", name, to, err)
			} else if other, ok := pages[file]; fragment != "" && (!ok || !other.ids[fragment]) {
				t.Errorf("%s: link %q: %s has no such heading", name, to, file)
			}
		}
	}
}

// The contents beside a page name every guide and reference, and mark the page itself.
func TestTheContentsListEveryDocument(t *testing.T) {
	root, out := filepath.Join("..", ".."), t.TempDir()
	if err := build(root, out); err != nil {
		t.Fatal(err)
	}
	s, err := open(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range s.names() {
		if !strings.HasPrefix(document, "docs/") || strings.HasPrefix(document, "docs/design/") || document == contents {
			continue
		}
		if p := parse(t, filepath.Join(out, target(document))); p.current != 1 {
			t.Errorf("%s links %d times to %s, want once", contents, p.current, document)
		}
	}
}

// What the site needs lies in it: a browser asks no other server.
func TestTheSiteNeedsNoOtherServer(t *testing.T) {
	out := t.TempDir()
	if err := build(filepath.Join("..", ".."), out); err != nil {
		t.Fatal(err)
	}
	err := fs.WalkDir(os.DirFS(out), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".html" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(out, name))
		for _, loads := range []string{`src="http`, `rel="stylesheet" href="http`, "<script"} {
			if strings.Contains(string(text), loads) {
				t.Errorf("%s has %s", name, loads)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLinksOfDocuments(t *testing.T) {
	s := &source{root: filepath.Join("..", ".."), pages: map[string]bool{"README.md": true, "docs/mps.md": true, "docs/guides/mig.md": true}}
	for _, tc := range []struct{ document, link, resolved, copied string }{
		{"README.md", "docs/mps.md", "docs/mps.html", ""},
		{"docs/mps.md", "guides/mig.md#create", "../docs/guides/mig.html#create", ""},
		{"docs/guides/mig.md", "../../README.md", "../../index.html", ""},
		{"docs/mps.md", "#gate", "#gate", ""},
		{"docs/mps.md", "https://example.com/a.md", "https://example.com/a.md", ""},
		{"README.md", "examples", repository + "/tree/main/examples", ""},
		{"README.md", "e2e/versions", repository + "/blob/main/e2e/versions", ""},
		{"README.md", "docs/images/page.png", "docs/images/page.png", "docs/images/page.png"},
	} {
		resolved, copied, err := s.resolve(tc.document, tc.link)
		if err != nil || resolved != tc.resolved || copied != tc.copied {
			t.Errorf("%s in %s: %q, %q, %v; want %q, %q", tc.link, tc.document, resolved, copied, err, tc.resolved, tc.copied)
		}
	}
	if _, _, err := s.resolve("README.md", "docs/gone.md"); err == nil {
		t.Error("a link to a document that is not there is no error")
	}
}
