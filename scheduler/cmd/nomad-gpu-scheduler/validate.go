package main

import (
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/scheduler/cmd/internal/cli"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

const validateHelp = `Reads a configuration of the service and says everything that is wrong with
it, without connecting to anything.`

func runValidate(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("validate", validateHelp, stderr)
	path := fs.String("config", "", "the file to read")
	if code, done := cli.ParseFlags(fs, args, stdout); done {
		return code
	}
	if *path == "" {
		fmt.Fprintln(stderr, "which file? write -config FILE")
		return exitUsage
	}
	c, err := config.Load(*path)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitError
	}
	fmt.Fprintf(stdout, "%s is valid: policy %s, %s\n", *path, c.Placement.Policy, queues(len(c.Queues)))
	return exitOK
}

func queues(n int) string {
	if n == 1 {
		return "1 queue"
	}
	return fmt.Sprintf("%d queues", n)
}
