// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"

	chroma "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/yuin/goldmark"
	highlighting "github.com/yuin/goldmark-highlighting/v2"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// page is a document as it is shown.
type page struct {
	Document string
	Title    string
	Headings []heading // of the second level
	Body     template.HTML
	copies   []string // the files that it shows
}

type heading struct{ ID, Text string }

// markdown reads documents as GitHub does, and marks code for the style sheet.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM, highlighting.NewHighlighting(highlighting.WithFormatOptions(chroma.WithClasses(true)))),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

// render makes the page of a document.
func (s *source) render(document string, content []byte) (*page, error) {
	context := parser.NewContext(parser.WithIDs(&identifiers{seen: map[string]int{}}))
	root := markdown.Parser().Parse(text.NewReader(content), parser.WithContext(context))
	p := &page{Document: document}
	if err := ast.Walk(root, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		return ast.WalkContinue, s.adapt(p, node, content)
	}); err != nil {
		return nil, err
	}
	if p.Title == "" {
		return nil, fmt.Errorf("%s: there is no title", document)
	}
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, content, root); err != nil {
		return nil, fmt.Errorf("render %s: %w", document, err)
	}
	p.Body = template.HTML(body.String()) //nolint:gosec // of the repository's own documents
	return p, nil
}

// adapt notes what the page needs of a node, and lets its links lead into the site.
func (s *source) adapt(p *page, node ast.Node, content []byte) (err error) {
	var copied string
	switch n := node.(type) {
	case *ast.Heading:
		switch label := plain(n, content); {
		case n.Level == 1 && p.Title == "":
			p.Title = label
		case n.Level == 2:
			id, _ := n.AttributeString("id")
			p.Headings = append(p.Headings, heading{ID: string(id.([]byte)), Text: label})
		}
	case *ast.Link:
		var to string
		to, copied, err = s.resolve(p.Document, string(n.Destination))
		n.Destination = []byte(to)
	case *ast.Image:
		var to string
		to, copied, err = s.resolve(p.Document, string(n.Destination))
		n.Destination = []byte(to)
	}
	if copied != "" {
		p.copies = append(p.copies, copied)
	}
	return err
}

// plain is the text of a node without its marks.
func plain(node ast.Node, content []byte) string {
	var b strings.Builder
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if t, ok := child.(*ast.Text); ok {
			b.Write(t.Value(content))
		} else {
			b.WriteString(plain(child, content))
		}
	}
	return b.String()
}

// identifiers names headings as GitHub does, so that links hold here and there.
type identifiers struct{ seen map[string]int }

var notInIdentifiers = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)

// Generate makes the name of a heading.
func (i *identifiers) Generate(value []byte, _ ast.NodeKind) []byte {
	name := notInIdentifiers.ReplaceAllString(strings.ToLower(string(util.TrimRightSpace(util.TrimLeftSpace(value)))), "")
	name = strings.ReplaceAll(name, " ", "-")
	n := i.seen[name]
	i.seen[name] = n + 1
	if n > 0 {
		name += "-" + strconv.Itoa(n)
	}
	return []byte(name)
}

// Put notes a name that a document gives by itself.
func (i *identifiers) Put(value []byte) { i.seen[string(value)]++ }
