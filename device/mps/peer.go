// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// errBusy means that a daemon is there and takes no connection now.
var errBusy = errors.New("its socket takes no connection: other processes hold it up")

// find returns the daemon that listens in the directories. Who that is, is the
// kernel's word: files there, the PID file among them, belong to tasks as well.
func (c control) find() (process, error) {
	pid, err := listener(c.dirs.socket())
	if err != nil {
		return process{}, err
	}
	found, err := procs.Find(pid)
	if err != nil {
		return process{}, err
	}
	if c.roleOf(pid) != roleDaemon {
		return process{}, fmt.Errorf("process %d listens on %s and is not the MPS control daemon: %w", pid, c.dirs.socket(), procs.ErrGone)
	}
	return found, nil
}

// queueWait is how long to wait for a place in the queue of a socket, which programs that
// connect at the same time fill.
const queueWait = time.Second

// listener returns the process that listens on a socket. It does not wait longer than
// queueWait: a daemon that is held up, and whatever a task puts in the socket's place,
// must not hold up the plugin.
func listener(path string) (int, error) {
	conn, err := mpswire.DialWithin(path, queueWait)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, errBusy
	case err != nil:
		return 0, fmt.Errorf("%w (%w)", err, procs.ErrGone)
	}
	defer conn.Close()
	peer, err := credentialsOf(conn)
	if err != nil {
		return 0, fmt.Errorf("ask who listens on %s: %w", path, err)
	}
	if peer.Pid <= 1 {
		return 0, fmt.Errorf("process %d listens on %s: %w", peer.Pid, path, procs.ErrGone) // 0 is one of another namespace
	}
	return int(peer.Pid), nil
}
