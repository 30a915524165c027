package main

import (
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
)

const versionHelp = `Shows the version, and what the command was built with.`

func runVersion(args []string, stdout, stderr io.Writer) int {
	if code, done := cli.ParseFlags(newFlags("version", versionHelp, stderr), args, stdout); done {
		return code
	}
	fmt.Fprintln(stdout, version.Line("nomad-gpu-scheduler"))
	return exitOK
}
