package main

import (
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

const versionHelp = `Shows the version, and what the command was built with.`

func runVersion(args []string, stdout, stderr io.Writer) int {
	if code, done := parseFlags(newFlags("version", versionHelp, stderr), args, stdout); done {
		return code
	}
	fmt.Fprintln(stdout, version.Line("nomad-gpu-scheduler"))
	return exitOK
}
