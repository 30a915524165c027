// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const resizeHelp = `Changes the task's share of its GPU, for a task on slices:

  compute=0.6        the part of the GPU's compute that is kept free for the task, up
                     to what it had at its start
  limit=0.9          the most that it may use, from compute up to what the operator
                     allows
  memory_limit=12G   the most memory that it may have while others leave it, where
                     NVIDIA's driver holds tasks to their memory

What others may have is free for them at once. Programs that run keep the limits with
which they were started; the answer has the variables for those that are started later.
A restart of the task brings back what its job says.`

func runResize(args []string, stdout, stderr io.Writer) int {
	fs := command.NewFlags(name, "resize KEY=VALUE...", resizeHelp, stderr)
	asJSON := fs.Bool("json", false, "print JSON")
	if code, done := command.ParseArguments(fs, args, 1, 3, stdout); done {
		return code
	}
	want, err := parseResize(fs.Args())
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitUsage
	}
	return finish(gpu.SelfRequest{Action: gpu.SelfResizeAction, Resize: &want}, *asJSON, stdout, stderr)
}

func parseResize(args []string) (gpu.SelfResize, error) {
	var want gpu.SelfResize
	for _, arg := range args {
		key, text, _ := strings.Cut(arg, "=")
		into, parse := &want.ComputeMilli, gpu.ParseMilli
		switch key {
		case "compute":
		case "limit":
			into = &want.LimitMilli
		case "memory_limit":
			into, parse = &want.MemoryLimitMiB, gpu.ParseMemory
		default:
			return want, fmt.Errorf("%.40q is not valid (compute=0.6, limit=0.9 or memory_limit=12G)", arg)
		}
		if *into != nil {
			return want, fmt.Errorf("%s: it is given twice", key)
		}
		value, err := parse(text)
		if err != nil {
			return want, fmt.Errorf("%s: %w", key, err)
		}
		*into = &value
	}
	return want, nil
}
