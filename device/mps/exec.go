package mps

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ExecCommand is the first argument with which the plugin's binary runs itself
// to start a daemon; its main must then call Exec.
const ExecCommand = "mps-exec"

// Exec, in a fresh mount namespace, mounts a directory as /dev/shm and becomes
// the control daemon: args are the directory, the program and its arguments.
// It returns only if that failed.
func Exec(args, env []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s: want a directory and a program, got %q", ExecCommand, args)
	}
	if err := unix.Mount(args[0], "/dev/shm", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s as /dev/shm: %w", args[0], err)
	}
	program, err := lookPath(args[1])
	if err != nil {
		return err
	}
	if err := unix.Exec(program, args[1:], env); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}
