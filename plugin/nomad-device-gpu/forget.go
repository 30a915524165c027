// SPDX-License-Identifier: MPL-2.0

package main

import (
	"io"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
)

const forgetHelp = `A GPU that is missing stays known, and unhealthy, so that Nomad does not forget
what tasks hold of it. This ends that, for a GPU that was taken out of the
machine for good. The running plugin does it within seconds, as soon as NVML
tells of every GPU that is there. A GPU that is in the machine is not forgotten.
Its number is not given to another one.`

func runForget(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("forget UUID", forgetHelp, stderr)
	dataDir := dataDirOption(fs)
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	return report(*dataDir, fs.Arg(0), stdout, stderr, func(uuid string) (string, error) {
		return "will be forgotten if it is not in the machine", registry.OpenForgotten(*dataDir).Add(uuid, "by hand")
	})
}
