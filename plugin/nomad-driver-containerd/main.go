// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-containerd is a Nomad task driver plugin that runs
// containers with containerd. Nomad starts it with a cookie in its environment;
// by hand it is a command line.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/driver"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/agentlog"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

func main() {
	// Nomad passes on what the agent's configuration has in args.
	if os.Getenv(base.Handshake.MagicCookieKey) != base.Handshake.MagicCookieValue {
		program.Main()
	}
	agentlog.Outlive(config.PluginName)
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true}) // as Nomad's own plugins log
	d := driver.New(context.Background(), logger)
	agentlog.EndUnused(d.Used)
	driver.Serve(d, logger)
}

var program = command.Program{Name: config.PluginName, Commands: []command.Command{
	{Name: "validate", Synopsis: "check a configuration", Arguments: command.Files, Run: runValidate},
	{Name: "validate-job", Synopsis: "check a job's tasks for this driver", Arguments: command.Files, Run: runValidateJob},
	command.Version(config.PluginName),
}}

const validateHelp = `Checks a configuration of this driver without Nomad. FILE is a configuration of
the Nomad agent, in HCL or JSON, or a folder of them, with a block

    plugin "nomad-driver-containerd" {
      config { ... }
    }

or the inside of that config block alone. docs/driver.md has its keys.

Every mistake is named with its key, its value and what is valid; a setting
without effect is a warning. The exit code is 0 when Nomad would accept the configuration, and 1 when not.`

func runValidate(args []string, stdout, stderr io.Writer) int {
	fs := command.NewFlags(config.PluginName, "validate FILE", validateHelp, stderr)
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	warnings, err := config.Validate(fs.Arg(0))
	for _, w := range warnings {
		fmt.Fprintln(stderr, "Warning: "+w)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	fmt.Fprintln(stdout, "The configuration is valid.")
	return command.ExitOK
}
