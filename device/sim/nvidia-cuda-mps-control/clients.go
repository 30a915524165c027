// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// client is a CUDA program that has connected, and who it says it is.
type client struct {
	connection
	who unix.Ucred
}

// takeClient gives a client to the server of its user, or to the one of all, and
// lets it wait until there is one.
func (d *daemon) takeClient(c client) {
	if d.serves(c) {
		d.log(fmt.Sprintf("NEW CLIENT %d from user %d: Server already exists", c.who.Pid, c.who.Uid))
		d.pass(c)
		return
	}
	d.log(fmt.Sprintf("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", c.who.Pid, c.who.Uid))
	d.pending = append(d.pending, c)
	switch {
	case d.server == nil:
		d.startServer(fmt.Sprint(c.who.Uid))
	case d.server.UnixConn != nil:
		d.shutDownServer() // which ends when it has no client
	}
}

// serves reports whether the server that there is takes a client.
func (d *daemon) serves(c client) bool {
	return d.server != nil && d.server.UnixConn != nil && (slices.Contains(d.args, multiUserFlag) || d.server.uid == fmt.Sprint(c.who.Uid))
}

// pass connects a client and the server. Like the original it waits for the
// client's status, for as long as the client stays.
func (d *daemon) pass(c client) {
	defer c.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	if d.server.Send32(opClient) == nil {
		_ = d.server.SendFile(pair[0])
	}
	if behaves(d.pipeDir, "other-protocol") {
		_, _, _ = c.WriteMsgUnix([]byte("OUTBCUF2\x00"), unix.UnixRights(pair[1]), nil)
	} else {
		_ = c.SendFile(pair[1])
	}
	_, _ = unix.Close(pair[0]), unix.Close(pair[1])
	_, _ = c.Receive()
}

// passPending gives those who wait to the server, or starts one for the first.
func (d *daemon) passPending() {
	waiting := d.pending
	d.pending = nil
	for _, c := range waiting {
		switch {
		case d.serves(c):
			d.pass(c)
			continue
		case d.server == nil:
			d.startServer(fmt.Sprint(c.who.Uid))
		}
		d.pending = append(d.pending, c)
	}
}

// shutDownServer asks the server to end once it has no client.
func (d *daemon) shutDownServer() {
	if d.server != nil && d.server.UnixConn != nil {
		d.log(fmt.Sprintf("Try shutting down server %d, backoff is disabled", d.server.cmd.Process.Pid))
		_ = d.server.Send32(opShutdown)
	}
}

// readLogs reads what clients log. The original's reader believes the lengths that
// it finds there, and anything but a log stops the daemon for good.
func (d *daemon) readLogs(pipe *os.File) {
	text := make([]byte, 4096)
	for {
		n, err := pipe.Read(text)
		if err != nil {
			return
		}
		if n > 0 && text[0] != 0 {
			d.stuck.Store(true)
		}
	}
}

func (d *daemon) waitWhileStuck() {
	for d.stuck.Load() {
		time.Sleep(time.Second)
	}
}

// holdClient keeps a client's connection until the client closes it.
func holdClient(fd int) {
	file := os.NewFile(uintptr(fd), "client")
	defer file.Close()
	packet := make([]byte, 4096)
	for {
		if n, err := file.Read(packet); err != nil || n == 0 {
			return
		}
	}
}
