// Command nomad-device-gpu is Nomad's device plugin for GPUs, and the tool with
// which an operator looks at what it does. Nomad starts it without arguments
// and with a cookie in its environment; with arguments it is a command line.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/internal/agentlog"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
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
	case len(os.Args) > 1 && os.Args[1] == cuda.ProbeCommand:
		if err := cuda.Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue:
		serve()
	default:
		os.Exit(runCommand(os.Args[1:], &cli.BasicUi{Reader: os.Stdin, Writer: os.Stdout, ErrorWriter: os.Stderr}))
	}
}

func serve() {
	agentlog.Outlive(device.Name)
	var plugin *device.Plugin
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any {
		plugin = device.NewPlugin(ctx, log)
		go func() {
			<-plugin.Outdated()
			plugin.Close()
			os.Exit(0)
		}()
		return plugin
	})
	plugin.Close()
}

// runCommand returns 0, 1 when the command failed, or 127 when there is none of
// that name.
func runCommand(args []string, ui cli.Ui) int {
	c := &cli.CLI{
		Name: device.Name, Version: version.Line(device.Name), Args: args, Autocomplete: true,
		HelpFunc: cli.BasicHelpFunc(device.Name), HelpWriter: os.Stdout, ErrorWriter: os.Stderr,
		Commands: map[string]cli.CommandFactory{
			"validate":  func() (cli.Command, error) { return &validateCommand{ui}, nil },
			"inventory": func() (cli.Command, error) { return &inventoryCommand{ui}, nil },
			"cordon":    func() (cli.Command, error) { return &cordonCommand{ui, true}, nil },
			"uncordon":  func() (cli.Command, error) { return &cordonCommand{ui, false}, nil },
			"forget":    func() (cli.Command, error) { return &forgetCommand{ui}, nil },
			"release":   func() (cli.Command, error) { return &releaseCommand{ui}, nil },
			"version":   func() (cli.Command, error) { return &versionCommand{ui}, nil },
		},
	}
	if name := c.Subcommand(); name != "" && c.Commands[name] == nil {
		ui.Error(fmt.Sprintf("%s has no command %q; it has %s", device.Name, name, strings.Join(slices.Sorted(maps.Keys(c.Commands)), ", ")))
		return 127
	}
	code, err := c.Run()
	if err != nil {
		ui.Error(err.Error())
		return 1
	}
	return code
}
