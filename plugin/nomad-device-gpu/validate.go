// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

const validateHelp = `Checks a configuration of this plugin without Nomad. FILE is a configuration of
the Nomad agent, in HCL or JSON, or a folder of them, with a block

    plugin "nomad-device-gpu" {
      config { ... }
    }

or the inside of that config block alone.

Every mistake is named with its key, its value and what is valid. A rule that
selects no GPU of this machine, and a setting without effect, are warnings. The exit code is 0 when Nomad would
accept the configuration, and 1 when not.`

func runValidate(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("validate FILE", validateHelp, stderr)
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	warnings, err := inventory.Validate(fs.Arg(0))
	for _, w := range warnings {
		fmt.Fprintln(stderr, "Warning: "+w)
	}
	if err != nil {
		return fail(stderr, err)
	}
	fmt.Fprintln(stdout, "The configuration is valid.")
	return command.ExitOK
}
