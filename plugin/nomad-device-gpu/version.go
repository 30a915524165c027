package main

import (
	"github.com/hashicorp/cli"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

type versionCommand struct{ ui cli.Ui }

func (c *versionCommand) Synopsis() string { return "Show the version" }
func (c *versionCommand) Help() string {
	return "Usage: nomad-device-gpu version\n\n  Shows the version."
}

func (c *versionCommand) Run([]string) int {
	c.ui.Output(version.Line(device.Name))
	return 0
}
