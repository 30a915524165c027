// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"context"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Uevent is a message of the kernel about a device.
type Uevent struct {
	// Action is "change", "add", "remove"; Path is the device's below /sys.
	Action, Path string
	Values       map[string]string
}

// PCI is the address of the PCI device that the event is of; empty for none.
func (u Uevent) PCI() string {
	address := ""
	for part := range strings.SplitSeq(u.Path, "/") {
		if isPCI(part) {
			address = part // the last one: those before are bridges
		}
	}
	return address
}

// isPCI reports whether a name is a PCI address as sysfs writes it.
func isPCI(name string) bool {
	ok, _ := path.Match("[0-9a-f][0-9a-f][0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-7]", name)
	return ok
}

// ParseUevent reads a message: a headline, then values, each ended by a zero.
func ParseUevent(message []byte) (Uevent, bool) {
	parts := strings.Split(string(message), "\x00")
	action, device, found := strings.Cut(parts[0], "@")
	if !found || action == "" || device == "" {
		return Uevent{}, false
	}
	u := Uevent{Action: action, Path: device, Values: map[string]string{}}
	for _, part := range parts[1:] {
		if key, value, found := strings.Cut(part, "="); found {
			u.Values[key] = value
		}
	}
	return u, true
}

// Listen hears the kernel's messages until the context ends.
func Listen(ctx context.Context, emit func(Uevent)) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("listen to kernel events: %w", err)
	}
	defer unix.Close(socket)
	const kernelGroup = 1
	if err := unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return fmt.Errorf("listen to kernel events: %w", err)
	}
	timeout := unix.Timeval{Usec: 250_000}
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("listen to kernel events: %w", err)
	}
	message := make([]byte, longestFile)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(socket, message, 0)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("hear kernel events: %w", err)
		}
		// Only the kernel is believed: any process may send to the group.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if u, ok := ParseUevent(message[:n]); ok {
			emit(u)
		}
	}
	return nil
}
