// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// placePoll is how often a gate looks for the namespace of a program that waits for it.
const placePoll = 20 * time.Millisecond

// maxAsks is how often a gate asks for a program: an answer may have been another's of the
// same control group, which had ended by then.
const maxAsks = 2

// socketOf is where the daemon takes a program: under MPS v3 its namespace's socket, whatever
// the program's environment names. No program comes to the daemon's own socket there, which
// would give it a server without limits. done is called once it is connected.
func (g *gate) socketOf(client mpswire.Conn, p peer) (socket string, done func(), err error) {
	own := filepath.Dir(g.daemon)
	places := mpsctl.PlacesOf(own)
	if !places.Exist() {
		return g.daemon, func() {}, nil
	}
	var namespace string
	question := ask{int(p.Pid), p.group}
	for asked, limit := 0, time.Now().Add(g.placing); ; time.Sleep(placePoll) {
		answered := !question.waits(own) // before the look, which then sees a place that came of it
		groups, err := cgroup.Of(int(p.Pid))
		if err != nil {
			return "", nil, fmt.Errorf("ask whose process %d is: %w", p.Pid, err)
		}
		if namespace, err = places.Find(groups); err != nil {
			return "", nil, fmt.Errorf("look for its MPS namespace: %w", err)
		}
		switch {
		case namespace == "" && answered && asked < maxAsks:
			asked++
			if err := question.write(own); err != nil {
				return "", nil, fmt.Errorf("ask for an MPS namespace: %w", err)
			}
			continue
		case namespace == "" && (answered || time.Now().After(limit) || hungUp(client.UnixConn)):
			return "", nil, errors.New("its control group has no MPS namespace")
		case namespace == "":
			continue
		}
		break
	}
	// The path of a socket is short, the state directory's may be long.
	dir, err := unix.Open(filepath.Join(own, gpu.MPSServer, namespace), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("reach MPS namespace %s: %w", namespace, &os.PathError{Op: "open", Path: namespace, Err: err})
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir, controlSocket), func() { _ = unix.Close(dir) }, nil
}
