// SPDX-License-Identifier: MPL-2.0

package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	enter = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	below = "\x1b[J" // erase everything below
	rest  = "\x1b[K" // erase the rest of the line
)

// Watch draws a view on the whole terminal, at once, every interval and when the
// terminal's size changes, until the user presses q or Ctrl-C, the terminal is closed, a
// signal comes or the context ends. Then the terminal is as it was.
func Watch(ctx context.Context, in, out *os.File, interval time.Duration, draw func(w io.Writer)) (err error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("take over the terminal: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	if _, err := io.WriteString(out, enter); err != nil {
		return errorOf(term.Restore(int(in.Fd()), before), err)
	}
	defer func() {
		_, left := io.WriteString(out, leave)
		err = errorOf(err, left, term.Restore(int(in.Fd()), before))
	}()
	pressed := quitPressed(in)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		var text strings.Builder
		draw(&text)
		if _, err := io.WriteString(out, frame(text.String(), size(out))); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pressed:
			return nil
		case <-tick.C:
		case <-resized:
		}
	}
}

// errorOf is the first error.
func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// quitPressed is closed when a key is pressed that ends a view, and when no more can be
// pressed. The goroutine reads on until then.
func quitPressed(in io.Reader) <-chan struct{} {
	const ctrlC = 3
	pressed := make(chan struct{})
	go func() {
		defer close(pressed)
		keys := make([]byte, 64)
		for {
			n, err := in.Read(keys)
			for _, key := range keys[:n] {
				if key == 'q' || key == 'Q' || key == ctrlC {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return pressed
}

// dimensions are columns and rows; those of a terminal that tells none are not bounded.
type dimensions struct{ columns, rows int }

func size(out *os.File) dimensions {
	columns, rows, err := term.GetSize(int(out.Fd()))
	if err != nil || columns == 0 || rows == 0 {
		return dimensions{1 << 20, 1 << 20}
	}
	return dimensions{columns, rows}
}

// frame is what shows a text from the top of the screen, cut to its size. Raw terminals
// want a carriage return with each new line.
func frame(text string, d dimensions) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > d.rows {
		lines = append(lines[:d.rows-1], fmt.Sprintf("… %d more lines", len(lines)-d.rows+1))
	}
	for n, line := range lines {
		lines[n] = cut(line, d.columns) + rest
	}
	return home + strings.Join(lines, "\r\n") + below
}

// cut is the beginning of a line that fits into that number of columns. Escape sequences, which
// are those of Paint, take no room, and are all kept.
func cut(line string, columns int) string {
	var b strings.Builder
	for len(line) > 0 {
		if escape, _, found := strings.Cut(line, "m"); found && strings.HasPrefix(line, "\x1b[") {
			b.WriteString(escape + "m")
			line = line[len(escape)+1:]
			continue
		}
		r, n := utf8.DecodeRuneInString(line)
		if columns > 0 {
			b.WriteRune(r)
		}
		columns--
		line = line[n:]
	}
	return b.String()
}
