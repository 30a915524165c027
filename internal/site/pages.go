// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// repository is where files are that have no page.
const repository = "https://github.com/nomad-gpu/nomad-gpu"

// source is a repository whose documents become pages. Paths are relative to its root,
// with slashes.
type source struct {
	root  string
	pages map[string]bool // the documents that have a page
}

// open finds the documents of a repository: those of docs, and those beside the README
// for people who use or change the product.
func open(root string) (*source, error) {
	s := &source{root: root, pages: map[string]bool{}}
	for _, name := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return nil, fmt.Errorf("find documents: %w", err)
		}
		s.pages[name] = true
	}
	docs := os.DirFS(root)
	err := fs.WalkDir(docs, "docs", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".md" {
			s.pages[name] = true
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find documents: %w", err)
	}
	return s, nil
}

// names are the documents in order.
func (s *source) names() []string {
	var names []string
	for name := range s.pages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// target is where the page of a document lies in the site.
func target(document string) string {
	dir, base := path.Split(document)
	if base == "README.md" {
		return dir + "index.html"
	}
	return strings.TrimSuffix(document, ".md") + ".html"
}

// resolve says what a link in a document leads to in the site, and which file has to be
// copied for it, if any. A link to a file or folder of the repository without a page
// leads to the repository. It fails where nothing is there.
func (s *source) resolve(document, link string) (resolved, copied string, err error) {
	if link == "" || strings.HasPrefix(link, "#") || strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return link, "", nil
	}
	name, fragment, _ := strings.Cut(link, "#")
	if fragment != "" {
		fragment = "#" + fragment
	}
	name = path.Join(path.Dir(document), name)
	if s.pages[name] {
		return relative(document, target(name)) + fragment, "", nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(name)))
	switch {
	case err != nil:
		return "", "", fmt.Errorf("%s: link %q: %w", document, link, err)
	case info.IsDir():
		return repository + "/tree/main/" + name, "", nil
	case slices.Contains([]string{".png", ".svg"}, path.Ext(name)):
		return relative(document, name), name, nil
	}
	return repository + "/blob/main/" + name + fragment, "", nil
}

// relative is the way from a document's page to a place in the site.
func relative(document, place string) string {
	return strings.Repeat("../", strings.Count(document, "/")) + place
}
