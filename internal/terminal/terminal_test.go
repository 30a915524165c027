// SPDX-License-Identifier: MPL-2.0

package terminal

import (
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	rows := func() [][]Cell {
		return [][]Cell{Row("Name", "State"), {{Text: "é\x1b[2J\u202e"}, {Text: "ok", Color: Green}}, {{Text: "longer"}, {Text: "", Color: Red}}}
	}
	for colored, want := range map[bool]string{
		false: "Name    State\né\uFFFD[2J\uFFFD  ok\nlonger  \n",
		true:  "\x1b[1mName\x1b[0m    \x1b[1mState\x1b[0m\né\uFFFD[2J\uFFFD  \x1b[32mok\x1b[0m\nlonger  \n",
	} {
		var b strings.Builder
		if err := Table(&b, rows(), colored); err != nil || b.String() != want {
			t.Errorf("%v: %q, want %q; %v", colored, b.String(), want, err)
		}
	}
}

func TestOnlyATerminalIsColored(t *testing.T) {
	if Colored(&strings.Builder{}, false) || Is(nil) {
		t.Error("a file is taken for a terminal")
	}
}

func TestFramesFitTheScreen(t *testing.T) {
	for _, tc := range []struct {
		text string
		d    dimensions
		want string
	}{
		{"a\nb\n", dimensions{80, 25}, home + "a" + rest + "\r\nb" + rest + below},
		{"abc\n\x1b[31mdéf\x1b[0mghi\n", dimensions{2, 25}, home + "ab" + rest + "\r\n\x1b[31mdé\x1b[0m" + rest + below},
		{"1\n2\n3\n4\n", dimensions{20, 3}, home + "1" + rest + "\r\n2" + rest + "\r\n… 2 more lines" + rest + below},
		{"1\n2", dimensions{20, 1}, home + "… 2 more lines" + rest + below},
	} {
		if got := frame(tc.text, tc.d); got != tc.want {
			t.Errorf("%q on %v: %q, want %q", tc.text, tc.d, got, tc.want)
		}
	}
}
