// SPDX-License-Identifier: MPL-2.0

// Package testport gives tests an address at which nothing listens, and which is given to
// no other program: a port that was free a moment ago may be that of another test.
package testport

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Reserve returns an address of this machine that is the test's until it ends. Who
// connects to it is refused, until a program that was told of it listens there.
func Reserve(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	// With this option another socket that has it, too, may listen there if it asks for
	// the port by its number; the kernel itself gives the port to none.
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}
