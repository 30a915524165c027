package main

import (
	"strings"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device"
)

type validateCommand struct{ ui cli.Ui }

func (c *validateCommand) Synopsis() string { return "Check a configuration file" }

func (c *validateCommand) Help() string {
	return strings.TrimSpace(`
Usage: nomad-device-gpu validate FILE

  Checks a configuration of this plugin without Nomad. FILE is a configuration
  of the Nomad agent with a block

      plugin "nomad-device-gpu" {
        config { ... }
      }

  or the inside of that config block alone.

  Every mistake is named with its key, its value and what is valid. A rule that
  selects no GPU of this machine is a warning. The exit code is 0 when Nomad
  would accept the configuration, and 1 when not.
`)
}

func (c *validateCommand) AutocompleteArgs() complete.Predictor {
	return complete.PredictOr(complete.PredictFiles("*.hcl"), complete.PredictDirs("*"))
}
func (c *validateCommand) AutocompleteFlags() complete.Flags { return nil }

func (c *validateCommand) Run(args []string) int {
	flags := newFlags("validate")
	if !parse(c.ui, flags, args, 1, 1) {
		return 1
	}
	warnings, err := device.ValidateFile(flags.Arg(0))
	for _, w := range warnings {
		c.ui.Warn("Warning: " + w)
	}
	if err != nil {
		c.ui.Error(err.Error())
		return 1
	}
	c.ui.Output("The configuration is valid.")
	return 0
}
