// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ExecCommand is the first argument with which the plugin's binary runs itself
// to start a daemon; its main must then call Exec.
const ExecCommand = "mps-exec"

// Exec, in a fresh mount namespace, mounts directories over others and becomes the
// control daemon: args are pairs of directories, "--", the program and its
// arguments. So the daemon has a /dev/shm of its own, and sees its sockets at the
// path at which its clients see the gate's. It returns only if that failed.
func Exec(args, env []string) error {
	end := slices.Index(args, "--")
	if end < 0 || end%2 != 0 || end+1 == len(args) {
		return fmt.Errorf("%s: want pairs of directories, --, and a program, got %q", ExecCommand, args)
	}
	for pair := range slices.Chunk(args[:end], 2) {
		if err := unix.Mount(pair[0], pair[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", pair[0], pair[1], err)
		}
	}
	command := args[end+1:]
	program, err := lookPath(command[0])
	if err != nil {
		return err
	}
	if err := unix.Exec(program, command, env); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}
