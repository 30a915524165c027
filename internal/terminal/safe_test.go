// SPDX-License-Identifier: MPL-2.0

package terminal

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal/hostile"
)

// What is written in parts is what is written at once, and nothing of it controls a
// terminal; only there colors stay.
func TestSafe(t *testing.T) {
	const text = "a\tb\né\u20ac" + hostile.Text + "\x1b[0m\xff\n"
	const want = "a\tb\né\u20ac\uFFFD]0;owned\uFFFD\uFFFD[2J\uFFFD[31m\uFFFD\uFFFD2J\uFFFD\uFFFDtrain\uFFFD[0m\uFFFD\n"
	for _, parts := range [][]string{{text}, strings.SplitAfter(text, ""), bytesOf(text)} {
		var b strings.Builder
		w := Safe(Safe(&b))
		for _, part := range parts {
			if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("wrote %d of %q: %v", n, part, err)
			}
		}
		if b.String() != want {
			t.Errorf("in %d parts: %q, want %q", len(parts), b.String(), want)
		}
	}
	if got := lines(text, true); got != strings.NewReplacer("\uFFFD[31m", "\x1b[31m", "\uFFFD[0m", "\x1b[0m").Replace(want) {
		t.Errorf("with colors %q", got)
	}
	if Plain("a\nb") == "a\nb" || Lines("a\nb\tc") != "a\nb\tc" {
		t.Error("a name has no new lines, and a text has")
	}
}

func bytesOf(text string) (parts []string) {
	for i := range len(text) {
		parts = append(parts, text[i:i+1])
	}
	return parts
}

// JSON says what a name is, and a terminal does not obey it.
func TestJSONIsEscaped(t *testing.T) {
	var b strings.Builder
	if err := JSON(&b, map[string]string{"name": hostile.Text}); err != nil {
		t.Fatal(err)
	}
	hostile.Harmless(t, "JSON", b.String())
	var read map[string]string
	if err := json.Unmarshal([]byte(b.String()), &read); err != nil || read["name"] != hostile.Text {
		t.Errorf("read %q, %v", read["name"], err)
	}
	if err := JSON(&b, func() {}); err == nil {
		t.Error("a function has no JSON")
	}
}

// What is behind a stream is found, and only a terminal is cleared.
func TestFileBehindAStream(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if File(Safe(f)) != f || File(f) != f || File(&strings.Builder{}) != nil || Is(Safe(f)) {
		t.Error("the file is not found, or taken for a terminal")
	}
	if err := Clear(Safe(f)); err != nil {
		t.Error(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("a file was cleared as a terminal: %v", err)
	}
}
