// SPDX-License-Identifier: MPL-2.0

package mps

import (
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
	asked := false
	for limit := time.Now().Add(g.placing); ; time.Sleep(placePoll) {
		groups, err := cgroup.Of(int(p.Pid))
		if err != nil {
			return "", nil, fmt.Errorf("ask whose process %d is: %w", p.Pid, err)
		}
		if namespace, err = places.Find(groups); err != nil {
			return "", nil, fmt.Errorf("look for its MPS namespace: %w", err)
		}
		if namespace != "" {
			break
		}
		if !asked {
			asked = true
			if err := (ask{int(p.Pid), p.group}).write(own); err != nil {
				return "", nil, fmt.Errorf("ask for an MPS namespace: %w", err)
			}
		}
		if time.Now().After(limit) || hungUp(client.UnixConn) {
			return "", nil, fmt.Errorf("its control group has no MPS namespace")
		}
	}
	// The path of a socket is short, the state directory's may be long.
	dir, err := unix.Open(filepath.Join(own, gpu.MPSServer, namespace), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("reach MPS namespace %s: %w", namespace, &os.PathError{Op: "open", Path: namespace, Err: err})
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir, controlSocket), func() { _ = unix.Close(dir) }, nil
}
