package main

import (
	"fmt"
	"strings"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device"
)

type forgetCommand struct{ ui cli.Ui }

func (c *forgetCommand) Synopsis() string { return "Forget a GPU that was removed for good" }

func (c *forgetCommand) Help() string {
	return strings.TrimSpace(`
Usage: nomad-device-gpu forget [options] UUID

  A GPU that is missing stays known, and unhealthy, so that Nomad does not
  forget what tasks hold of it. This ends that, for a GPU that was taken out of
  the machine for good. The running plugin does it within seconds, as soon as
  NVML tells of every GPU that is there. A GPU that is in the machine is not
  forgotten. Its number is not given to another one.

Options:

  -data-dir=DIR
    data_dir of the plugin's configuration. Default: ` + defaultDataDir)
}

func (c *forgetCommand) AutocompleteArgs() complete.Predictor { return complete.PredictAnything }
func (c *forgetCommand) AutocompleteFlags() complete.Flags {
	return complete.Flags{"-data-dir": complete.PredictDirs("*")}
}

func (c *forgetCommand) Run(args []string) int {
	flags := newFlags("forget")
	dataDir := flags.String("data-dir", defaultDataDir, "")
	if !parse(c.ui, flags, args, 1, 1) {
		return 1
	}
	uuid := flags.Arg(0)
	if err := mark(*dataDir, uuid); err != nil {
		c.ui.Error(err.Error())
		return 1
	}
	c.ui.Output(fmt.Sprintf("%s will be forgotten if it is not in the machine.", uuid))
	return 0
}

func mark(dataDir, uuid string) error {
	if err := device.CheckUUID(uuid); err != nil {
		return err
	}
	if err := device.KnownDevice(dataDir, uuid); err != nil {
		return err
	}
	return device.OpenForgotten(dataDir).Add(uuid, "by hand")
}
