// SPDX-License-Identifier: MPL-2.0

// Command node is the first process of a simulated machine: a PID namespace and
// a mount namespace in which a container runtime and a Nomad client run as if
// they had booted.
//
// The machine has a boot ID of its own, an empty /run and /dev/shm, and its own /proc; the
// rest is the host's. When this process ends, the kernel ends every process and
// drops every mount of the machine, whatever they were doing: that is what makes
// a reboot, and a clean end of a test.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

const bootIDFile = "/proc/sys/kernel/random/boot_id"

func main() {
	bootID := flag.String("boot-id", "", "file that holds the machine's boot ID")
	lifeline := flag.Bool("lifeline", false, "end when standard input does")
	flag.Parse()
	if err := boot(*bootID); err != nil {
		fmt.Fprintln(os.Stderr, "boot simulated machine:", err)
		os.Exit(1)
	}
	if *lifeline {
		go powerOffAtEOF()
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	fmt.Println("ready")
	for range children {
		reap()
	}
}

// boot gives the namespaces that this process was started in what a machine
// has after it started.
func boot(bootID string) error {
	if os.Getpid() != 1 {
		return errors.New("this program must be the first process of a PID namespace")
	}
	resolvConf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount(bootID, bootIDFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("set boot ID: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// Tasks share it with host_shm, and their files in it end with the boot.
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	return restoreResolvConf(resolvConf)
}

// restoreResolvConf keeps name resolution working where /etc/resolv.conf is a
// link into /run.
func restoreResolvConf(content []byte) error {
	if _, err := os.Stat("/etc/resolv.conf"); err == nil || len(content) == 0 {
		return nil
	}
	const copied = "/run/resolv.conf"
	if err := os.WriteFile(copied, content, 0o644); err != nil {
		return err
	}
	return unix.Mount(copied, "/etc/resolv.conf", "", unix.MS_BIND, "")
}

// powerOffAtEOF ends the machine when whoever started it is gone.
func powerOffAtEOF() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// reap collects every process that ended and has no parent left.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil || pid == 0 {
			return
		}
	}
}
