// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

const cordonHelp = `Takes a GPU or MIG instance out of service: no new task is put on it, and what
runs goes on and may restart in place. A running plugin notices within seconds;
the cordon stands across restarts and reboots, until uncordon.

Tasks of drivers other than containerd are known by their processes, which have
the reservation in their environment; without any process for a minute their
instances are closed like free ones. Nomad leaves such tasks running.`

const uncordonHelp = `Ends a cordon. A running plugin notices within seconds.`

func runCordon(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("cordon UUID", cordonHelp, stderr)
	dataDir := dataDirOption(fs)
	reason := fs.String("reason", "by hand", "`text` that is shown wherever the device is said to be unhealthy")
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	return report(*dataDir, fs.Arg(0), stdout, stderr, func(uuid string) (string, error) { return mark(*dataDir, uuid, *reason, true) })
}

func runUncordon(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("uncordon UUID", uncordonHelp, stderr)
	dataDir := dataDirOption(fs)
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	return report(*dataDir, fs.Arg(0), stdout, stderr, func(uuid string) (string, error) { return mark(*dataDir, uuid, "", false) })
}

// report does something to a device and says what the device is afterwards.
func report(dataDir, given string, stdout, stderr io.Writer, do func(uuid string) (outcome string, err error)) int {
	uuid, err := registry.Find(dataDir, given)
	if err != nil {
		return fail(stderr, err)
	}
	outcome, err := do(uuid)
	if err != nil {
		return fail(stderr, err)
	}
	fmt.Fprintf(stdout, "%s %s.\n", uuid, outcome)
	return command.ExitOK
}

// devicesHere completes the UUIDs that the plugin knows of.
var devicesHere = command.Names(func(_ context.Context, given func(string) string) []string {
	return registry.Known(cmp.Or(given("data-dir"), defaultDataDir))
})

// cordonedHere completes the UUIDs of cordoned devices.
var cordonedHere = command.Names(func(_ context.Context, given func(string) string) []string {
	cordons, err := registry.OpenCordons(cmp.Or(given("data-dir"), defaultDataDir)).All()
	if err != nil {
		return nil
	}
	return slices.Collect(maps.Keys(cordons))
})

// mark cordons or uncordons a device, and names its new state.
func mark(dataDir, uuid, reason string, cordon bool) (outcome string, err error) {
	cordons := registry.OpenCordons(dataDir)
	switch {
	case cordon:
		return "is cordoned", cordons.Add(uuid, reason)
	case cordons.Has(uuid):
		return "is uncordoned", cordons.Remove(uuid)
	}
	return "was not cordoned", nil
}
