// SPDX-License-Identifier: MPL-2.0

// Package command is the command line that all programs share: a program is a
// list of subcommands, each with its own options and help. Exit codes, the help
// command, the order of options and arguments, and completion are the same in
// each.
package command

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

// Exit codes of every subcommand.
const (
	ExitOK    = 0
	ExitError = 1 // the work failed
	ExitUsage = 2 // the command line makes no sense
)

// Program is a program with subcommands, in the order of its help text.
type Program struct {
	Name     string
	Commands []Command
}

// Command is a subcommand. Its options are completed from its own help,
// and so are values that are files; Values completes those of other options, by the
// option's name without a dash, and Arguments the rest.
type Command struct {
	Name      string
	Synopsis  string
	Arguments Predictor
	Values    map[string]Predictor
	Run       func(args []string, stdout, stderr io.Writer) int
}

// Main runs the subcommand that the process's arguments name, and ends the
// process with its exit code.
func (p *Program) Main() { os.Exit(p.Run(os.Args[1:], os.Stdout, os.Stderr)) }

// Run runs the subcommand that the arguments name and returns its exit code. It
// also answers a shell that asks for completions, and teaches the shell to ask
// with -autocomplete-install, as HashiCorp's programs do. What the subcommand
// writes controls no terminal, whoever chose the names in it.
func (p *Program) Run(args []string, stdout, stderr io.Writer) int {
	stdout, stderr = terminal.Safe(stdout), terminal.Safe(stderr)
	c := &cli.CLI{
		Name: p.Name, Version: version.Line(p.Name), Args: p.plain(args), Commands: p.factories(stdout, stderr),
		Autocomplete: true, HelpFunc: func(map[string]cli.CommandFactory) string { return p.help() },
		HelpWriter: stdout, ErrorWriter: io.Discard,
	}
	if name := c.Subcommand(); !c.IsHelp() && !c.IsVersion() && p.find(name) == nil && !completes(args) {
		if name != "" {
			fmt.Fprintf(stderr, "unknown command %q\n\n", name)
		}
		fmt.Fprintln(stderr, p.help())
		return ExitUsage
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return ExitError
	}
	return code
}

// plain writes "help run" as "run -help", and the help or version of the whole
// program as options.
func (p *Program) plain(args []string) []string {
	if len(args) == 0 || args[0] != "help" {
		return args
	}
	if len(args) > 1 && p.find(args[1]) != nil {
		return []string{args[1], "-help"}
	}
	return []string{"-help"}
}

func (p *Program) find(name string) *Command {
	for n := range p.Commands {
		if p.Commands[n].Name == name {
			return &p.Commands[n]
		}
	}
	return nil
}

func (p *Program) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s <command> [options]\n\nCommands:\n", p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(&b, "  %-10s %s\n", c.Name, c.Synopsis)
	}
	fmt.Fprint(&b, "\nRun a command with -help for its options.")
	return b.String()
}

func (p *Program) factories(stdout, stderr io.Writer) map[string]cli.CommandFactory {
	all := map[string]cli.CommandFactory{}
	for _, c := range p.Commands {
		all[c.Name] = func() (cli.Command, error) { return &subcommand{c, stdout, stderr}, nil }
	}
	return all
}

// Version is the subcommand that says which build a program is.
func Version(program string) Command {
	return Command{Name: "version", Synopsis: "show which build this is", Run: func(args []string, stdout, stderr io.Writer) int {
		fs := NewFlags(program, "version", "Shows the version, and what the program was built with.", stderr)
		if code, done := ParseFlags(fs, args, stdout); done {
			return code
		}
		fmt.Fprintln(stdout, version.Line(program))
		return ExitOK
	}}
}
