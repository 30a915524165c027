// SPDX-License-Identifier: MPL-2.0

// Package terminal writes for people who look at a terminal: tables, colors where they
// are wanted, and views that are drawn again and again on the whole screen.
//
// Names that tenants chose never control the terminal: control characters in a cell become
// a replacement character. Safe does that to all that a program writes.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// Color is how a cell is set off.
type Color string

// The colors are those of the terminal's own palette.
const (
	Default Color = ""
	Bold    Color = "1"
	Red     Color = "31"
	Green   Color = "32"
	Yellow  Color = "33"
)

// Cell is one field of a table.
type Cell struct {
	Text  string
	Color Color
}

// Colored reports whether to write in colors: on a terminal that can, unless the user says
// no with an option, with NO_COLOR or with NOMAD_CLI_NO_COLOR, as for the nomad command.
func Colored(w io.Writer, no bool) bool {
	return !no && os.Getenv("NO_COLOR") == "" && os.Getenv("NOMAD_CLI_NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && Is(w)
}

// Row makes cells without colors.
func Row(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for n, text := range texts {
		cells[n].Text = text
	}
	return cells
}

// Table writes rows in columns, the first as a heading.
func Table(w io.Writer, rows [][]Cell, colored bool) error {
	var widths []int
	for _, row := range rows {
		for n := range row {
			row[n].Text = Plain(row[n].Text)
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], utf8.RuneCountInString(row[n].Text))
		}
	}
	var b strings.Builder
	for r, row := range rows {
		for n, cell := range row {
			if r == 0 && cell.Color == Default {
				cell.Color = Bold
			}
			b.WriteString(Paint(cell, colored))
			if n < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[n]-utf8.RuneCountInString(cell.Text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Paint is a cell's text in its color.
func Paint(c Cell, colored bool) string {
	if !colored || c.Color == Default || c.Text == "" {
		return Plain(c.Text)
	}
	return "\x1b[" + string(c.Color) + "m" + Plain(c.Text) + "\x1b[0m"
}

// Printf writes what others have named as Plain does.
func Printf(w io.Writer, format string, args ...any) {
	for n, arg := range args {
		if text, is := arg.(string); is {
			args[n] = Plain(text)
		}
	}
	fmt.Fprintf(w, format, args...)
}

// Plain is a text without control characters, which a terminal would obey.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if controls(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}
