package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/hashicorp/cli"
)

// newFlags makes a flag set that leaves printing to the caller. Flags may be
// written with one dash or two.
func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// parse reads flags and checks the number of arguments. It reports whether the
// command can go on.
func parse(ui cli.Ui, flags *flag.FlagSet, args []string, least, most int) bool {
	err := flags.Parse(args)
	if n := flags.NArg(); err == nil && (n < least || n > most) {
		err = fmt.Errorf("this command takes %d to %d arguments, %d are given", least, most, n)
		if least == most {
			err = fmt.Errorf("this command takes %d argument, %d are given", least, n)
		}
	}
	if err != nil {
		ui.Error(err.Error())
		ui.Error(fmt.Sprintf("for help: nomad-device-gpu %s -h", flags.Name()))
	}
	return err == nil
}
