package main

import (
	"fmt"

	"github.com/hashicorp/cli"

	"github.com/nomad-gpu/nomad-gpu/device"
)

type versionCommand struct{ ui cli.Ui }

func (c *versionCommand) Synopsis() string { return "Show the version" }
func (c *versionCommand) Help() string {
	return "Usage: nomad-device-gpu version\n\n  Shows the version."
}

func (c *versionCommand) Run([]string) int {
	c.ui.Output(fmt.Sprintf("%s %s", device.Name, device.Version))
	return 0
}
