// SPDX-License-Identifier: MPL-2.0

package command

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

// ParseOptions is ParseFlags for a subcommand that takes arguments too. Options
// may stand before and after arguments; what follows "--" is an argument.
func ParseOptions(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		fs.SetOutput(stdout) // help that was asked for is output
	} else {
		fs.Usage = func() { PointToHelp(fs) } // a page of help would hide the mistake
	}
	if err := fs.Parse(optionsFirst(fs, args)); errors.Is(err, flag.ErrHelp) {
		return ExitOK, true
	} else if err != nil {
		return ExitUsage, true
	}
	return ExitOK, false
}

// ParseArguments is ParseOptions for a subcommand that takes least to most
// arguments; they are fs.Args() afterwards.
func ParseArguments(fs *flag.FlagSet, args []string, least, most int, stdout io.Writer) (code int, done bool) {
	usage := usageLine(fs)
	if code, done := ParseOptions(fs, args, stdout); done {
		return code, true
	}
	if n := fs.NArg(); n < least || n > most {
		fmt.Fprintf(fs.Output(), "this command takes %s, not %d: %s\n", countOfArguments(least, most), n, usage)
		PointToHelp(fs)
		return ExitUsage, true
	}
	return ExitOK, false
}

// usageLine is the first line of a subcommand's help, which names its arguments.
func usageLine(fs *flag.FlagSet) string {
	var help strings.Builder
	to := fs.Output()
	fs.SetOutput(&help)
	fs.Usage()
	fs.SetOutput(to)
	line, _, _ := strings.Cut(help.String(), "\n")
	return strings.TrimPrefix(line, "Usage: ")
}

func countOfArguments(least, most int) string {
	switch {
	case most == 0:
		return "no arguments"
	case least != most:
		return fmt.Sprintf("%d to %d arguments", least, most)
	case most == 1:
		return "one argument"
	}
	return fmt.Sprintf("%d arguments", most)
}

// optionsFirst sorts a command line so that package flag, which stops at the
// first argument, reads all options.
func optionsFirst(fs *flag.FlagSet, args []string) []string {
	var options, arguments []string
	for n := 0; n < len(args); n++ {
		name := strings.TrimLeft(args[n], "-")
		switch {
		case args[n] == "--":
			arguments = append(arguments, args[n+1:]...)
			n = len(args)
		case name == args[n] || name == "": // no dash, or "-": standard input
			arguments = append(arguments, args[n])
		default:
			options = append(options, args[n])
			if f := fs.Lookup(name); f == nil || isSwitch(f) {
				continue
			}
			if n++; n == len(args) {
				return options // without its value, which package flag will say
			}
			options = append(options, args[n])
		}
	}
	return slices.Concat(options, []string{"--"}, arguments)
}

// isSwitch says whether an option stands alone, without a value after it.
func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
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
