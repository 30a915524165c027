// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-gpu is Nomad's device plugin for GPUs, and the tool with
// which an operator looks at its work. Nomad starts it without arguments
// and with a cookie in its environment; with arguments it is a command line.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/agentlog"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

func main() {
	switch {
	case filepath.Base(os.Args[0]) == nvidia.HookCommand:
		if err := nvidia.Hook(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && os.Args[1] == mps.ExecCommand:
		fmt.Fprintln(os.Stderr, mps.Exec(os.Args[2:], os.Environ()))
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == mps.GateCommand:
		if err := mps.RunGate(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && os.Args[1] == subcommand.MemoryLimits:
		if err := subcommand.RunMemoryLimits(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && os.Args[1] == subcommand.Checkpoint:
		if err := subcommand.RunCheckpoint(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && os.Args[1] == cuda.ProbeCommand:
		if err := cuda.Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue:
		serve()
	default:
		program.Main()
	}
}

func serve() {
	agentlog.Outlive(device.Name)
	var plugin *device.Plugin
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any {
		plugin = device.NewPlugin(ctx, log)
		agentlog.EndUnused(plugin.Used)
		go func() {
			<-plugin.Outdated()
			plugin.Close()
			os.Exit(0)
		}()
		return plugin
	})
	plugin.Close()
}

var program = command.Program{Name: device.Name, Commands: []command.Command{
	{Name: "inventory", Synopsis: "show what the plugin exposes", Arguments: command.Files, Run: runInventory},
	{Name: "top", Synopsis: "watch GPUs, tasks and MPS daemons", Arguments: command.Files, Run: runTop},
	{Name: "cordon", Synopsis: "take one GPU out of service for new work", Arguments: devicesHere, Run: runCordon},
	{Name: "uncordon", Synopsis: "put one GPU back into service", Arguments: cordonedHere, Run: runUncordon},
	{Name: "release", Synopsis: "let go of a GPU, and reset it", Arguments: devicesHere, Run: runRelease},
	{Name: "forget", Synopsis: "forget a GPU that was removed for good", Arguments: devicesHere, Run: runForget},
	{Name: "validate", Synopsis: "check a configuration", Arguments: command.Files, Run: runValidate},
	command.Version(device.Name),
}}

// newFlags is the flag set of a subcommand.
func newFlags(usage, help string, stderr io.Writer) *flag.FlagSet {
	return command.NewFlags(device.Name, usage, help, stderr)
}

const defaultDataDir = "/var/lib/nomad-gpu"

// dataDirOption says where the plugin that is meant keeps its data.
func dataDirOption(fs *flag.FlagSet) *string {
	return fs.String("data-dir", defaultDataDir, "data_dir of the plugin's configuration: a `folder`")
}

// fail prints why a subcommand failed, and returns its exit code.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, err)
	return command.ExitError
}
