// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal/hostile"
)

// tool has a subcommand that prints what it was given, and one that fails.
var tool = Program{Name: "tool", Commands: []Command{
	{Name: "show", Synopsis: "show a file", Arguments: Files, Values: map[string]Predictor{"color": OneOf("red", "blue")}, Run: func(args []string, stdout, stderr io.Writer) int {
		fs := NewFlags("tool", "show FILE...", "Shows files.", stderr)
		loud, color, from := fs.Bool("loud", false, "louder"), fs.String("color", "", "a `name`"), fs.String("from", "", "a `folder`")
		if code, done := ParseArguments(fs, args, 1, 2, stdout); done {
			return code
		}
		fmt.Fprintln(stdout, fs.Args(), *loud, *color, *from)
		return ExitOK
	}},
	{Name: "fail", Run: func([]string, io.Writer, io.Writer) int { return ExitError }},
	Version("tool"),
}}

func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = tool.Run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// Whatever a subcommand of any program writes, names in it control no terminal.
func TestNamesDoNotSteerTheTerminal(t *testing.T) {
	rude := Program{Name: "rude", Commands: []Command{{Name: "show", Run: func(_ []string, stdout, stderr io.Writer) int {
		fmt.Fprintln(stdout, "job "+hostile.Text)
		fmt.Fprintln(stderr, "Error: "+hostile.Text)
		return ExitOK
	}}}}
	var out, errs bytes.Buffer
	if code := rude.Run([]string{"show"}, &out, &errs); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	hostile.Harmless(t, "output", out.String())
	hostile.Harmless(t, "errors", errs.String())
}

func TestCommandLines(t *testing.T) {
	for _, tc := range []struct {
		line           string
		code           int
		stdout, stderr string
	}{
		{"", ExitUsage, "", "Usage: tool <command>"},
		{"help", ExitOK, "show       show a file", ""},
		{"-h", ExitOK, "Commands:", ""},
		{"help show", ExitOK, "Usage: tool show [options] FILE...", ""},
		{"help nonsense", ExitOK, "Commands:", ""},
		{"show -help", ExitOK, "Usage: tool show [options] FILE...", ""},
		{"nonsense", ExitUsage, "", `unknown command "nonsense"`},
		{"-nonsense", ExitUsage, "", "Usage: tool <command>"},
		{"version", ExitOK, "tool ", ""},
		{"--version", ExitOK, "tool ", ""},
		{"fail", ExitError, "", ""},
		{"show -color red a", ExitOK, "[a] false red", ""},
		{"show a -color red", ExitOK, "[a] false red", ""},
		{"show a -loud b", ExitOK, "[a b] true", ""},
		{"show --loud=false a --color=red b", ExitOK, "[a b] false red", ""},
		{"show -- -loud -color", ExitOK, "[-loud -color] false", ""},
		{"show - -loud", ExitOK, "[-] true", ""},
		{"show a -size 3", ExitUsage, "", "flag provided but not defined: -size"},
		{"show a -color", ExitUsage, "", "flag needs an argument: -color"},
		{"show", ExitUsage, "", "this command takes 1 to 2 arguments, not 0"},
		{"show a b c", ExitUsage, "", "For more: tool show -help"},
		{"version now", ExitUsage, "", `unexpected argument "now"`},
	} {
		code, stdout, stderr := run(strings.Fields(tc.line)...)
		if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%q: exit code %d, %q, %q; want %d, %q, %q", tc.line, code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
		}
		if (tc.stdout == "") != (stdout == "") || (tc.stderr == "") != (stderr == "") {
			t.Errorf("%q: output %q, errors %q", tc.line, stdout, stderr)
		}
	}
}

func TestArgumentsAreCounted(t *testing.T) {
	for want, count := range map[string][2]int{"no arguments": {0, 0}, "one argument": {1, 1}, "2 arguments": {2, 2}, "0 to 1 arguments": {0, 1}} {
		if got := countOfArguments(count[0], count[1]); got != want {
			t.Errorf("%v: %q, want %q", count, got, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	show := &subcommand{Command: tool.Commands[0], stdout: io.Discard, stderr: io.Discard}
	flags := show.AutocompleteFlags()
	for _, name := range []string{"-loud", "-color", "-from"} {
		if _, found := flags[name]; !found {
			t.Errorf("%s is not completed: %v", name, flags)
		}
	}
	if colors := flags["-color"].Predict(complete.Args{}); !slices.Equal(colors, []string{"red", "blue"}) {
		t.Errorf("-color is completed with %q", colors)
	}
	if fail := (&subcommand{Command: tool.Commands[1]}); len(fail.AutocompleteFlags()) != 0 {
		t.Error("a subcommand without options is completed with some")
	}
	t.Setenv("COMP_LINE", "tool sh")
	if code, stdout, stderr := run(); code != ExitOK || stderr != "" {
		t.Errorf("a shell that asks: %d, %q, %q", code, stdout, stderr)
	}
}

// Whoever names a job does not choose what another user's shell runs, and a server that
// does not answer holds no shell up for longer than a second.
func TestNamesAreCompleted(t *testing.T) {
	names := Names(func(_ context.Context, given func(string) string) []string {
		return []string{"b", given("namespace") + "/a", "b", "$(reboot)", "a b", "-rf", "`id`", "c\nd", "\x1b[2J", "x;y", "", given("address"), given("token")}
	})
	line := complete.Args{Completed: []string{"-namespace", "old", "-address=http://x:1", "--namespace=team", "token", "-token"}}
	if got, want := names.Predict(line), []string{"b", "http://x:1", "team/a"}; !slices.Equal(got, want) {
		t.Errorf("names are %q, want %q", got, want)
	}
	synctest.Test(t, func(t *testing.T) {
		never, begin := make(chan []string), time.Now()
		late := Names(func(context.Context, func(string) string) []string { return <-never })
		if got := late.Predict(complete.Args{}); got != nil || time.Since(begin) != namesTimeout {
			t.Errorf("%q after %s", got, time.Since(begin))
		}
		close(never)
	})
}
