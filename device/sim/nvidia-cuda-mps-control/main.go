// Command nvidia-cuda-mps-control stands in for NVIDIA's program of the same
// name on a simulated machine. It speaks the same protocol: with -d it becomes a
// daemon that serves a pipe directory, without it sends the commands on its
// standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY and prints the
// answers.
//
// A file named "behaviour" in the pipe directory makes the daemon misbehave,
// one word at a time: "hang" (it takes commands and does not answer), "lie" (it
// takes limits and reports others), "crash" (it ends at the next command),
// "refuse" (it does not start).
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nvidia-cuda-mps-control:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	pipeDir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if pipeDir == "" {
		pipeDir = "/tmp/nvidia-mps"
	}
	daemon := false
	for _, arg := range args {
		switch arg {
		case "-d":
			daemon = true
		case "-multiuser-server", serveFlag:
		default:
			return fmt.Errorf("unknown option %q", arg)
		}
	}
	switch {
	case len(args) > 0 && args[0] == serveFlag:
		return serve(pipeDir)
	case daemon:
		return daemonise(pipeDir)
	default:
		return client(pipeDir, os.Stdin, os.Stdout)
	}
}
