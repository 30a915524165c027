package main

import (
	"strings"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device"
)

// cordonCommand is both cordon and uncordon.
type cordonCommand struct {
	ui     cli.Ui
	cordon bool
}

const defaultDataDir = "/var/lib/nomad-gpu"

func (c *cordonCommand) Synopsis() string {
	if c.cordon {
		return "Take one GPU out of service for new work"
	}
	return "Put one GPU back into service"
}

func (c *cordonCommand) Help() string {
	if !c.cordon {
		return strings.TrimSpace(`
Usage: nomad-device-gpu uncordon [options] UUID

  Ends a cordon. A running plugin notices within seconds.

Options:

  -data-dir=DIR
    data_dir of the plugin's configuration. Default: ` + defaultDataDir)
	}
	return strings.TrimSpace(`
Usage: nomad-device-gpu cordon [options] UUID

  Takes a GPU or MIG instance out of service: no new task is put on it, and what
  runs goes on and may restart in place. A running plugin notices within
  seconds; the cordon stands across restarts and reboots, until uncordon.

  Tasks of drivers other than containerd are known by their processes, which
  have the reservation in their environment; without any process for a minute
  their instances are closed like free ones. Nomad leaves such tasks running.

Options:

  -reason=TEXT
    Shown wherever the device is said to be unhealthy. Default: "by hand"

  -data-dir=DIR
    data_dir of the plugin's configuration. Default: ` + defaultDataDir)
}

func (c *cordonCommand) AutocompleteArgs() complete.Predictor {
	return complete.PredictFunc(func(complete.Args) []string {
		i, err := device.TakeInventory("")
		if err != nil {
			return nil
		}
		var uuids []string
		for _, d := range i.Devices {
			uuids = append(uuids, d.UUID)
		}
		return uuids
	})
}

func (c *cordonCommand) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{"-data-dir": complete.PredictDirs("*")}
	if c.cordon {
		flags["-reason"] = complete.PredictAnything
	}
	return flags
}

func (c *cordonCommand) Run(args []string) int {
	name, reason := "uncordon", new(string)
	if c.cordon {
		name = "cordon"
	}
	flags := newFlags(name)
	dataDir := flags.String("data-dir", defaultDataDir, "")
	if c.cordon {
		reason = flags.String("reason", "by hand", "")
	}
	if !parse(c.ui, flags, args, 1, 1) {
		return 1
	}
	uuid := flags.Arg(0)
	outcome, err := c.mark(*dataDir, uuid, *reason)
	if err != nil {
		c.ui.Error(err.Error())
		return 1
	}
	c.ui.Output(uuid + " " + outcome + ".")
	return 0
}

// mark cordons or uncordons a device, and says in words what it is afterwards.
func (c *cordonCommand) mark(dataDir, uuid, reason string) (outcome string, err error) {
	if err := device.CheckUUID(uuid); err != nil {
		return "", err
	}
	cordons := device.OpenCordons(dataDir)
	if !c.cordon && cordons.Has(uuid) {
		return "is uncordoned", cordons.Remove(uuid) // of a device that was forgotten, too
	}
	if err := device.KnownDevice(dataDir, uuid); err != nil {
		return "", err
	}
	if !c.cordon {
		return "was not cordoned", nil
	}
	return "is cordoned", cordons.Add(uuid, reason)
}
