package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device"
)

type releaseCommand struct{ ui cli.Ui }

func (c *releaseCommand) Synopsis() string { return "Let go of a GPU, and reset it" }

func (c *releaseCommand) Help() string {
	return strings.TrimSpace(`
Usage: nomad-device-gpu release [options] UUID

  Asks the running plugin to let go of a GPU. It takes no new work from then on;
  when its tasks have ended its MPS daemon is ended too, and the plugin closes
  NVML, which for so long watches no GPU of the node. Then the GPU takes work
  again, once a CUDA program works on it if it had a fault.

  This is how to do the reset that faults ask for while Nomad runs. What fails is
  said, and the GPU stays cordoned until uncordon.

Options:

  -reset
    Reset the GPU meanwhile with nvidia-smi. Not every GPU can be reset alone.

  -timeout=DURATION
    How long to wait for it. The plugin goes on after that. Default: 10m

  -data-dir=DIR
    data_dir of the plugin's configuration. Default: ` + defaultDataDir)
}

func (c *releaseCommand) AutocompleteArgs() complete.Predictor { return complete.PredictAnything }
func (c *releaseCommand) AutocompleteFlags() complete.Flags {
	return complete.Flags{"-reset": complete.PredictNothing, "-timeout": complete.PredictAnything, "-data-dir": complete.PredictDirs("*")}
}

func (c *releaseCommand) Run(args []string) int {
	flags := newFlags("release")
	reset := flags.Bool("reset", false, "")
	timeout := flags.Duration("timeout", 10*time.Minute, "")
	dataDir := flags.String("data-dir", defaultDataDir, "")
	if !parse(c.ui, flags, args, 1, 1) {
		return 1
	}
	what := ""
	if *reset {
		what = device.ReleaseReset
	}
	if err := c.release(*dataDir, flags.Arg(0), what, *timeout); err != nil {
		c.ui.Error(err.Error())
		return 1
	}
	c.ui.Output(flags.Arg(0) + " was released.")
	return 0
}

// release flags a GPU and waits until the plugin has taken the flag away.
func (c *releaseCommand) release(dataDir, uuid, what string, timeout time.Duration) error {
	if err := device.CheckUUID(uuid); err != nil {
		return err
	}
	if err := device.KnownDevice(dataDir, uuid); err != nil {
		return err
	}
	releases, cordons := device.OpenReleases(dataDir), device.OpenCordons(dataDir)
	cordoned := cordons.Has(uuid)
	if err := releases.Add(uuid, what); err != nil {
		return err
	}
	c.ui.Output(uuid + " takes no new work; waiting for its tasks to end.")
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(timeout); releases.Has(uuid); {
		select {
		case <-limit:
			return fmt.Errorf("%s is not released after %s; the plugin goes on when its tasks have ended", uuid, timeout)
		case <-tick.C:
		}
	}
	reasons, err := cordons.All()
	if err == nil && !cordoned && cordons.Has(uuid) {
		err = fmt.Errorf("%s is cordoned: %s", uuid, reasons[uuid])
	}
	return err
}
