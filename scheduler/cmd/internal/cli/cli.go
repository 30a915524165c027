// Package cli is the command line that the programs of this folder share: a
// program is a list of subcommands, each with its own options and help.
package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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

// Command is a subcommand.
type Command struct {
	Name     string
	Synopsis string
	Run      func(args []string, stdout, stderr io.Writer) int
}

// Dispatch runs the subcommand that the arguments name.
func (p *Program) Dispatch(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		p.usage(stderr)
		return ExitUsage
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help", "help":
		p.usage(stdout)
		return ExitOK
	case "-v", "-version", "--version":
		name = "version"
	}
	for _, c := range p.Commands {
		if c.Name == name {
			return c.Run(args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "unknown command %q\n\n", args[0])
	p.usage(stderr)
	return ExitUsage
}

func (p *Program) usage(w io.Writer) {
	fmt.Fprintf(w, "Usage: %s <command> [options]\n\nCommands:\n", p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.Name, c.Synopsis)
	}
	fmt.Fprint(w, "\nRun a command with -help for its options.\n")
}

// NewFlags returns a flag set that prints the help text and then the options.
// Usage is the subcommand's name and its arguments: "run <job file>".
func NewFlags(program, usage, help string, stderr io.Writer) *flag.FlagSet {
	name, arguments, _ := strings.Cut(usage, " ")
	fs := flag.NewFlagSet(program+" "+name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		line := strings.TrimSpace(fs.Name() + " [options] " + arguments)
		fmt.Fprintf(fs.Output(), "Usage: %s\n\n%s\n\nOptions:\n", line, help)
		fs.PrintDefaults()
	}
	return fs
}

// ParseFlags reads the options of a subcommand without arguments; done is true
// when there is nothing more to do than to exit with the code.
func ParseFlags(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if code, done := ParseOptions(fs, args, stdout); done {
		return code, true
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(fs.Output(), "unexpected argument %q\n", fs.Arg(0))
		PointToHelp(fs)
		return ExitUsage, true
	}
	return ExitOK, false
}

// PointToHelp says where the help of a subcommand is.
func PointToHelp(fs *flag.FlagSet) {
	fmt.Fprintf(fs.Output(), "For more: %s -help\n", fs.Name())
}

// ParseOptions is ParseFlags for a subcommand that takes arguments too.
func ParseOptions(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		fs.SetOutput(stdout) // help that was asked for is output
	} else {
		fs.Usage = func() { PointToHelp(fs) } // a page of help would hide the mistake
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return ExitOK, true
	} else if err != nil {
		return ExitUsage, true
	}
	return ExitOK, false
}

// Given is the first of the named options, separated by blanks, that the
// command line has.
func Given(fs *flag.FlagSet, names string) string {
	found := ""
	fs.Visit(func(f *flag.Flag) {
		for _, name := range strings.Fields(names) {
			if found == "" && f.Name == name {
				found = name
			}
		}
	})
	return found
}

// ReadFile opens a file for a reader; its errors name the file.
func ReadFile(path string, read func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := read(bufio.NewReader(f)); err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	return nil
}

// WriteFile creates a file and reports errors of closing it too.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	if err := write(b); err != nil {
		f.Close()
		return err
	}
	if err := b.Flush(); err != nil {
		f.Close()
		return fmt.Errorf("write %q: %w", path, err)
	}
	return f.Close()
}
