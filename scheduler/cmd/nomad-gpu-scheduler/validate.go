// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

const validateHelp = `Reads a configuration of the service and says everything that is wrong with
it, without connecting to anything. Files that it names and that cannot be read
are warnings: they may be elsewhere.`

func runValidate(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("validate <file>", validateHelp, stderr)
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	path := fs.Arg(0)
	c, err := config.Load(path)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitError
	}
	for _, f := range c.Files() {
		if file, err := os.Open(f.Path); err != nil {
			fmt.Fprintf(stderr, "Warning: %s cannot be read here: %v\n", f.Key, err)
		} else {
			file.Close() //nolint:errcheck // nothing was written
		}
	}
	fmt.Fprintf(stdout, "%s is valid: policy %s, %s\n", path, c.Placement.Policy, queues(len(c.Queues)))
	return exitOK
}

func queues(n int) string {
	if n == 1 {
		return "1 queue"
	}
	return fmt.Sprintf("%d queues", n)
}
