// SPDX-License-Identifier: MPL-2.0

// Command nomad-gpu-doctor tells an operator the faults of a node, from its
// kernel to what Nomad sees of it, and packs what a bug report needs.
package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/driver"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
)

const name = "nomad-gpu-doctor"

func main() { program.Main() }

var program = command.Program{Name: name, Commands: []command.Command{
	{Name: "check", Synopsis: "check this node", Run: runCheck},
	{Name: "bundle", Synopsis: "pack what a bug report needs", Run: runBundle},
	command.Version(name),
}}

const checkHelp = `Checks this node, from its kernel to what Nomad sees of it: kernel and control
groups, clock, Nomad's unit, the plugins and others that would offer the same
GPUs, drivers and each GPU, MPS, metrics, containerd and runc, CNI, confinement,
Docker's runtime, and Nomad's client with the drivers and devices that it has.

It changes nothing. Run it as root: without that much is not known. It asks the
agent at NOMAD_ADDR, with NOMAD_TOKEN where there are ACLs (node:read).

Each line says ok, warning or failed, and what to do. The exit code is 0 when
nothing failed, and 1 when something did.`

func runCheck(args []string, stdout, stderr io.Writer) int {
	fs := command.NewFlags(name, "check", checkHelp, stderr)
	config := fs.String("config", "/etc/nomad.d", "configuration of Nomad's agent: a `file` or folder")
	asJSON := fs.Bool("json", false, "print JSON")
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	report := examine(context.Background(), *config, thisHost())
	write := report.Write
	if *asJSON {
		write = report.WriteJSON
	}
	if err := write(stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	if report.Worst() == doctor.Failed {
		return command.ExitError
	}
	return command.ExitOK
}

// examine makes all checks, those first on which the others depend.
func examine(ctx context.Context, config string, h host) *doctor.Report {
	report := &doctor.Report{}
	agent, err := agentconfig.ReadAgent(config)
	h.diagnose(ctx, report.Area("host"))
	plugins := report.Area("plugins")
	if err != nil {
		plugins.Fail("configuration", "name the agent's configuration with -config; what follows is with the plugins' defaults", "%v", err)
		config = ""
	} else {
		h.diagnosePlugins(ctx, agent, plugins)
	}
	inventory.Diagnose(ctx, config, report)
	allocDir := ""
	if agent.DataDir != "" {
		allocDir = filepath.Join(agent.DataDir, "alloc")
	}
	alone := err == nil && withoutDriver(agent)
	if !alone {
		driver.Diagnose(ctx, config, allocDir, report)
	}
	h.diagnoseDocker(ctx, report.Area("docker"))
	diagnoseNomad(ctx, agent, alone, report.Area("Nomad"))
	return report
}
