// Command nomad-gpu-scheduler is the placement service and its command line.
//
// Every subcommand is one file: it declares its flags, its help and a run
// function, and is listed in commands.
package main

import (
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
	exitOK    = 0
	exitError = 1 // the work failed
	exitUsage = 2 // the command line makes no sense
)

// command is a subcommand.
type command struct {
	name     string
	synopsis string
	run      func(args []string, stdout, stderr io.Writer) int
}

// commands lists the subcommands in the order of the help text.
var commands = []command{
	{"run", "submit a job and say where it goes", runRun},
	{"plan", "say where a job would go, and why", runPlan},
	{"status", "show GPUs, queues and what waits", runStatus},
	{"explain", "explain what was decided for a job", runExplain},
	{"serve", "run the placement service", runServe},
	{"validate", "check a configuration of the service", runValidate},
	{"simulate", "replay a workload and compare policies", runSimulate},
	{"generate", "write a synthetic workload for simulate", runGenerate},
	{"version", "show which build this is", runVersion},
}

func main() {
	if completed(os.Args[1:]) {
		return
	}
	os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr))
}

// dispatch runs the subcommand that the arguments name.
func dispatch(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		usage(stdout)
		return exitOK
	case "-v", "-version", "--version":
		return runVersion(args[1:], stdout, stderr)
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "unknown command %q\n\n", args[0])
	usage(stderr)
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Usage: nomad-gpu-scheduler <command> [options]\n\nCommands:\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.synopsis)
	}
	fmt.Fprint(w, "\nRun a command with -help for its options.\n")
}

// newFlags returns a flag set that prints the help text and then the options.
// Usage is the subcommand's name and its arguments: "run <job file>".
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	name, arguments, _ := strings.Cut(usage, " ")
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		line := strings.TrimSpace("nomad-gpu-scheduler " + name + " [options] " + arguments)
		fmt.Fprintf(fs.Output(), "Usage: %s\n\n%s\n\nOptions:\n", line, help)
		fs.PrintDefaults()
	}
	return fs
}

// parseFlags reads the options; done is true when there is nothing more to do
// than to exit with the code.
func parseFlags(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if code, done := parseOptions(fs, args, stdout); done {
		return code, true
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(fs.Output(), "unexpected argument %q\n", fs.Arg(0))
		pointToHelp(fs)
		return exitUsage, true
	}
	return exitOK, false
}

func pointToHelp(fs *flag.FlagSet) {
	fmt.Fprintf(fs.Output(), "For more: nomad-gpu-scheduler %s -help\n", fs.Name())
}

// parseOptions is parseFlags for a subcommand that takes arguments too.
func parseOptions(fs *flag.FlagSet, args []string, stdout io.Writer) (code int, done bool) {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		fs.SetOutput(stdout) // help that was asked for is output
	} else {
		fs.Usage = func() { pointToHelp(fs) } // a page of help would hide the mistake
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK, true
	} else if err != nil {
		return exitUsage, true
	}
	return exitOK, false
}
