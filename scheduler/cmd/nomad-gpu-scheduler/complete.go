package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"regexp"

	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
)

// jobFileCommands take a job file as their argument.
var jobFileCommands = map[string]bool{"run": true, "plan": true}

// completed answers a shell that asks for completions, and the options
// -autocomplete-install and -autocomplete-uninstall that teach it to ask, as in
// HashiCorp's tools. It reports whether that was all there was to do.
func completed(args []string) bool {
	c := complete.New("nomad-gpu-scheduler", complete.Command{})
	if os.Getenv("COMP_LINE") != "" {
		c.Command = completion()
	}
	c.InstallName, c.UninstallName = "autocomplete-install", "autocomplete-uninstall"
	fs := flag.NewFlagSet("nomad-gpu-scheduler", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.AddFlags(fs)
	// Whoever gives the option has said yes.
	if fs.Parse(append([]string{"-y"}, args...)) != nil { // none of ours, so it is a subcommand's business
		return false
	}
	return c.Complete()
}

// completion is what can follow the program's name.
func completion() complete.Command {
	all := complete.Command{Sub: complete.Commands{}, GlobalFlags: complete.Flags{"-help": complete.PredictNothing}}
	for _, c := range commands {
		one := complete.Command{Flags: flagsOf(c), Args: complete.PredictNothing}
		if jobFileCommands[c.Name] {
			one.Args = complete.PredictFiles("*")
		}
		all.Sub[c.Name] = one
	}
	return all
}

// option is a line of a subcommand's help: "  -var-file file".
var option = regexp.MustCompile(`(?m)^  (-[a-z0-9-]+)(?: (\S+))?$`)

// flagsOf reads a subcommand's options from its own help, so that neither can
// fall behind the other.
func flagsOf(c cli.Command) complete.Flags {
	var help bytes.Buffer
	c.Run([]string{"-help"}, &help, io.Discard)
	flags := complete.Flags{}
	for _, line := range option.FindAllStringSubmatch(help.String(), -1) {
		switch line[2] {
		case "":
			flags[line[1]] = complete.PredictNothing
		case "file", "folder":
			flags[line[1]] = complete.PredictFiles("*")
		default:
			flags[line[1]] = complete.PredictAnything
		}
	}
	return flags
}
