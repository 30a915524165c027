// SPDX-License-Identifier: MPL-2.0

package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Safe returns a stream that takes from texts what a terminal would obey, whoever wrote
// them: names of jobs, an error of Nomad's, a line of a log. New lines and tabs stay, and
// so do the colors of Paint where the stream is a terminal.
func Safe(w io.Writer) io.Writer {
	if s, already := w.(*safe); already {
		return s
	}
	return &safe{out: w, colors: Is(w)}
}

// safe keeps of a text that was written in parts the beginning of a rune.
type safe struct {
	out    io.Writer
	colors bool

	mu   sync.Mutex
	rest []byte
}

// Write writes the safe part of a text.
func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := append(s.rest, p...)
	whole := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if start := len(text) - n; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				whole = start
			}
			break
		}
	}
	s.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(s.out, lines(string(text[:whole]), s.colors)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Lines is a text as Plain has it, but for its new lines and tabs.
func Lines(text string) string { return lines(text, false) }

func lines(text string, colors bool) string {
	if strings.IndexFunc(text, controls) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		if colors && text[0] == '\x1b' {
			if color := painted(text); color != "" {
				b.WriteString(color)
				text = text[len(color):]
				continue
			}
		}
		r, n := utf8.DecodeRuneInString(text)
		if controls(r) && r != '\n' && r != '\t' {
			r = utf8.RuneError
		}
		b.WriteRune(r)
		text = text[n:]
	}
	return b.String()
}

// painted is the escape sequence of Paint that a text begins with; empty for any other.
func painted(text string) string {
	for _, c := range []Color{"0", Bold, Red, Green, Yellow} {
		if sequence := "\x1b[" + string(c) + "m"; strings.HasPrefix(text, sequence) {
			return sequence
		}
	}
	return ""
}

// controls reports whether a terminal may obey a rune.
func controls(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// JSON writes a value for programs, indented. What a terminal would obey is escaped, so
// that programs read it as it is.
func JSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var b strings.Builder
	for _, r := range string(text) {
		if controls(r) && r != '\n' { // all of them have four digits
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('\n')
	_, err = io.WriteString(w, b.String())
	return err
}

// File is the file behind a stream; nil where there is none.
func File(stream any) *os.File {
	if s, ok := stream.(*safe); ok {
		stream = s.out
	}
	f, _ := stream.(*os.File)
	return f
}

// Is reports whether something is a terminal.
func Is(stream any) bool {
	f := File(stream)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// Clear empties a terminal. Other files get nothing.
func Clear(w io.Writer) error {
	if !Is(w) {
		return nil
	}
	_, err := io.WriteString(File(w), home+below)
	return err
}
