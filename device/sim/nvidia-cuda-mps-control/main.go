// SPDX-License-Identifier: MPL-2.0

// Command nvidia-cuda-mps-control stands in for NVIDIA's program of the same
// name, and for nvidia-cuda-mps-server, on machines without a GPU. It answers as
// the original does, with its flaws; the files in testdata hold what the original
// of each driver branch answered, and a test holds this program to them.
//
// With -d it becomes a daemon that serves a pipe directory; without, it sends the
// commands on its standard input to the daemon of CUDA_MPS_PIPE_DIRECTORY and
// prints the answers. Run as nvidia-cuda-mps-server it registers with the daemon
// that started it, this one or NVIDIA's. It speaks the originals' wire format, so
// each part works with the original of the other.
//
// The driver branch is the name of the directory that the program lies in (470,
// 535, 550, 555, 590, 615 or 620), and 555 in any other. The originals from 590 on could
// not be had: static partitions, and MPS v3 of 615 and 620, are as NVIDIA documents them,
// and as others have seen them (see partitions.go and v3daemon.go).
//
// A file named "behavior" in the pipe directory makes both misbehave, a line for
// each way. The daemon's: "hang" (it takes commands and does not answer), "lie"
// (it takes limits and reports others), "crash" (it ends at the next command),
// "refuse" (it does not start), "no-server" (its servers register and end at once, as on a
// machine without a GPU). The
// server's: "initializing" and "fault" are its state, "clients 12 13" are its
// clients by process ID, and while there is any of those a fault lasts; "stubborn"
// keeps it from terminating them. Clients that it terminated stand in the file "terminated"
// there. "multiprocessors 56 4" is a device with 56, in chunks of 4, in the
// place of 132 in chunks of 8.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// serverName is the name by which the program is the server.
const serverName = "nvidia-cuda-mps-server"

func main() {
	code, err := run(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	pipeDir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if pipeDir == "" {
		pipeDir = "/tmp/nvidia-mps"
	}
	if filepath.Base(args[0]) == serverName && os.Getenv(server3Name) != "" {
		return 1, serveClients3(args[1])
	}
	if filepath.Base(args[0]) == serverName {
		if err := serveClients(pipeDir); err != nil {
			return 1, err
		}
		return 0, nil
	}
	b := ownBranch()
	if b.release > 0 {
		if done, code, err := run3(pipeDir, b, args[1:]); done {
			return code, err
		}
	}
	if slices.Contains(os.Environ(), serveVariable) {
		if err := serve(pipeDir, b, args[2:]); err != nil {
			return 1, err
		}
		return 0, nil
	}
	var options []string
	daemon := false
	for _, arg := range args[1:] {
		switch {
		case arg == "-d":
			daemon = true
		case arg == multiUserFlag && b.multiUser, arg == staticFlag && b.static:
			options = append(options, arg)
		case b.usage:
			return 1, fmt.Errorf("CUDA MPS Control for Linux/Unix")
		default:
			// Older branches take unknown arguments for a wish to be a client.
			return ask(pipeDir, os.Stdin, os.Stdout)
		}
	}
	if !daemon {
		return ask(pipeDir, os.Stdin, os.Stdout)
	}
	if err := daemonise(pipeDir, options); err != nil {
		return 1, err
	}
	return 0, nil
}
