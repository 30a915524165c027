// SPDX-License-Identifier: MPL-2.0

// Package documents reads the repository's Markdown for tests that try its
// examples.
package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Block is a fenced block of a document.
type Block struct {
	Path string // of the document, from the repository's root
	Line int    // on which the block begins
	// Language is what the block says that it is: "hcl", "console"; often empty.
	Language string
	Text     string
}

// All are the paths of the repository's Markdown files, from its root.
func All(t testing.TB, root string) []string {
	t.Helper()
	return Files(t, root, ".md")
}

// Files are the paths of the repository's files with some endings, from its root;
// build outputs are left out.
func Files(t testing.TB, root string, endings ...string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin") {
			return filepath.SkipDir
		}
		if !entry.IsDir() && slices.Contains(endings, filepath.Ext(path)) {
			relative, err := filepath.Rel(root, path)
			paths = append(paths, relative)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Read returns a file's text; its path is relative to the repository's root.
func Read(t testing.TB, root, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Fences are the fenced blocks of a document, in order.
func Fences(t testing.TB, root, path string) []Block {
	t.Helper()
	var blocks []Block
	text := Read(t, root, path)
	for _, at := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatchIndex(text, -1) {
		blocks = append(blocks, Block{Path: path, Line: 1 + strings.Count(text[:at[0]], "\n"), Language: text[at[2]:at[3]], Text: text[at[4]:at[5]]})
	}
	return blocks
}

// HCL are the HCL blocks of all documents that begin, after comments, with one
// of these words; without any word, all of them.
func HCL(t testing.TB, root string, words ...string) []Block {
	t.Helper()
	var blocks []Block
	for _, path := range All(t, root) {
		for _, block := range Fences(t, root, path) {
			if block.Language == "hcl" && (len(words) == 0 || slices.Contains(words, FirstWord(block))) {
				blocks = append(blocks, block)
			}
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("no document has HCL that begins with %v", words)
	}
	return blocks
}

// FirstWord is the word that an HCL block begins with, after comments: the name of a
// block or of a key.
func FirstWord(block Block) string {
	return regexp.MustCompile(`^(?:\s*#[^\n]*\n|\s*\n)*\s*(\w*)`).FindStringSubmatch(block.Text)[1]
}
