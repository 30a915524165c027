// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"strings"

	chroma "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/styles"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html style.css
var assets embed.FS

var layout = template.Must(template.ParseFS(assets, "page.html"))

// contents is the document whose paragraphs are the sections beside every page.
const contents = "docs/README.md"

// section is a part of the contents.
type section struct {
	Title string
	Links []link
}

type link struct {
	Text, To string
	Current  bool
}

// view is what the layout shows.
type view struct {
	*page
	Top, Repository string // the ways to the site's root and to the repository
	Sections        []section
}

// build writes the site of a repository.
func build(root, out string) error {
	s, err := open(root)
	if err != nil {
		return err
	}
	copies := map[string]bool{}
	for _, document := range s.names() {
		content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(document)))
		if err != nil {
			return err
		}
		p, err := s.render(document, content)
		if err != nil {
			return err
		}
		for _, name := range p.copies {
			copies[name] = true
		}
		if err := s.write(p, out); err != nil {
			return fmt.Errorf("write the page of %s: %w", document, err)
		}
	}
	for name := range copies {
		content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := put(out, name, content); err != nil {
			return err
		}
	}
	return writeStyle(out)
}

// write lays a page out and writes it.
func (s *source) write(p *page, out string) error {
	sections, err := s.sections(p.Document)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	v := view{page: p, Top: relative(p.Document, ""), Repository: repository, Sections: sections}
	if err := layout.Execute(&b, v); err != nil {
		return err
	}
	return put(out, target(p.Document), b.Bytes())
}

// sections are the contents as the page of a document links to them: every paragraph
// that begins with a bold word.
func (s *source) sections(document string) ([]section, error) {
	content, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(contents)))
	if err != nil {
		return nil, err
	}
	var list []section
	root := markdown.Parser().Parse(text.NewReader(content))
	for node := root.FirstChild(); node != nil; node = node.NextSibling() {
		title, ok := node.FirstChild().(*ast.Emphasis)
		if !ok {
			continue
		}
		one := section{Title: strings.TrimSuffix(plain(title, content), ".")}
		for child := node.FirstChild(); child != nil; child = child.NextSibling() {
			if l, ok := child.(*ast.Link); ok {
				to, _, err := s.resolve(contents, string(l.Destination))
				if err != nil {
					return nil, err
				}
				if !strings.Contains(to, "://") {
					to = relative(document, path.Join(path.Dir(contents), to))
				}
				one.Links = append(one.Links, link{Text: plain(l, content), To: to, Current: to == relative(document, target(document))})
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// writeStyle writes the style sheet, with the colors of code for light and dark.
func writeStyle(out string) error {
	own, err := assets.ReadFile("style.css")
	if err != nil {
		return err
	}
	b := bytes.NewBuffer(own)
	for _, scheme := range []struct{ media, style string }{{"light", "github"}, {"dark", "github-dark"}} {
		fmt.Fprintf(b, "@media (prefers-color-scheme: %s) {\n", scheme.media)
		if err := chroma.New(chroma.WithClasses(true)).WriteCSS(b, styles.Get(scheme.style)); err != nil {
			return err
		}
		b.WriteString("}\n")
	}
	return put(out, "style.css", b.Bytes())
}

// put writes a file of the site.
func put(out, name string, content []byte) error {
	to := filepath.Join(out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}
