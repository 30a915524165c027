// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// testGate introduces a program to a daemon as the gate does, and ends: a gate that does not
// know the driver's protocol would refuse every program. Only a server of root is tested: one
// that serves another user alone would be shut down for a program of root.
func (c control) testGate(server int) error {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", server))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		return nil
	}
	err = introduce(c.dirs.socket(), c.Timeout)
	if errors.Is(err, mpswire.ErrUnknown) {
		return &actionError{
			reason: "the gate does not know the protocol of this driver's MPS: " + err.Error(),
			action: "install a release of this plugin that knows the driver, or an older driver",
		}
	}
	return err
}

// introduce leaves once it has a connection to the server.
func introduce(socket string, patience time.Duration) error {
	daemon, err := mpswire.DialWithin(socket, patience)
	if err != nil {
		return err
	}
	defer daemon.Close()
	if err := errors.Join(daemon.SetDeadline(time.Now().Add(patience)), daemon.ExpectHello()); err != nil {
		return err
	}
	me := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if err := daemon.Introduce(me, mpswire.KindClient); err != nil {
		return err
	}
	file, err := daemon.ReceiveFile()
	if err != nil {
		return err
	}
	return errors.Join(daemon.Send32(0), unix.Close(file))
}
