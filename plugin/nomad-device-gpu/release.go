// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

const releaseHelp = `Asks the running plugin to let go of a GPU. It takes no new work from then on;
when its tasks have ended its MPS daemon is ended too, and the plugin closes
NVML, which for so long watches no GPU of the node. Then the GPU takes work
again, once a CUDA program works on it if it had a fault.

This is how to do the reset that faults ask for while Nomad runs. What fails is
said, and the GPU stays cordoned until uncordon.`

func runRelease(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("release UUID", releaseHelp, stderr)
	dataDir := dataDirOption(fs)
	reset := fs.Bool("reset", false, "reset the GPU meanwhile with nvidia-smi; not every GPU can be reset alone")
	timeout := fs.Duration("timeout", 10*time.Minute, "how long to wait for it; the plugin goes on after that")
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	what := ""
	if *reset {
		what = registry.ReleaseReset
	}
	return report(*dataDir, fs.Arg(0), stdout, stderr, func(uuid string) (string, error) {
		return "was released", release(*dataDir, uuid, what, *timeout, stdout)
	})
}

// release flags a GPU and waits until the plugin has taken the flag away.
func release(dataDir, uuid, what string, timeout time.Duration, stdout io.Writer) error {
	releases, cordons := registry.OpenReleases(dataDir), registry.OpenCordons(dataDir)
	cordoned := cordons.Has(uuid)
	if err := releases.Add(uuid, what); err != nil {
		return err
	}
	fmt.Fprintln(stdout, uuid+" takes no new work; waiting for its tasks to end.")
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
