// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// What a daemon asks of a server.
const (
	opShutdown   = 5
	opClients    = 6
	opDevices    = 7
	opPercent    = 8
	opSetPercent = 9
	opMemory     = 11
	opSetMemory  = 12
	opTerminate  = 13
	opSnapshot   = 14
	opStatus     = 17
)

// opClient announces a client, whose descriptor comes in the next packet. It is the
// number of its kind.
const opClient = uint32(mpswire.KindClient)

// memoryDevices is for how many devices a daemon tells a new server its limits.
const memoryDevices = 32

// connection is one side of a talk between a daemon and its server or a UI.
type connection struct{ mpswire.Conn }

// dial connects to a daemon as kind.
func dial(pipeDir, socket string, kind mpswire.Kind) (connection, error) {
	conn, err := mpswire.Dial(filepath.Join(pipeDir, socket))
	if err != nil {
		return connection{}, err
	}
	c := connection{conn}
	err = c.ExpectHello()
	if err == nil {
		err = c.Introduce(unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}, kind)
	}
	if err != nil {
		c.Close()
		return connection{}, err
	}
	return c, nil
}
