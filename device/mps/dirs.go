// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// dirs are a daemon's directories. In pipe tasks find the gate; own is where the
// daemon's sockets are, which the daemon sees in the place of pipe (see Exec).
type dirs struct{ base, pipe, own, log, shm string }

// shortUUID is how much of a UUID names its directory: "GPU-1a2b3c4d-5e6f". The
// path of a socket has little more than a hundred characters.
const shortUUID = 17

// maxSocketPath is the longest path of a socket; longestSocket is the longest
// name of one below the MPS directory.
const (
	maxSocketPath = 107
	longestSocket = "/GPU-12345678-1234/daemon/pipe/control_privileged"
)

func rootIn(stateDir string) string { return filepath.Join(stateDir, "mps") }

// CheckStateDir refuses a state_dir whose path leaves no room for the daemons' sockets.
func CheckStateDir(dir string) error {
	if longest := len(rootIn(dir)) + len(longestSocket); longest > maxSocketPath {
		return fmt.Errorf("state_dir %q is too long for the sockets of MPS; take one that is %d characters shorter", dir, longest-maxSocketPath)
	}
	return nil
}

func dirsIn(root, uuid string) dirs {
	base := filepath.Join(root, uuid[:min(len(uuid), shortUUID)])
	return dirs{base: base, pipe: filepath.Join(base, "pipe"), own: filepath.Join(base, "daemon", "pipe"),
		log: filepath.Join(base, "log"), shm: filepath.Join(base, "shm")}
}

// make creates the directories. Tasks run as any user: they must reach the gate in
// the pipe directory and write to the shared memory, and nothing else. A server can
// be of any user too: it reaches the daemon through the mount (see Exec), and others
// do not get past the directory around.
func (d dirs) make() error {
	type dir struct {
		path string
		mode os.FileMode
	}
	all := []dir{{d.base, 0o711}, {d.pipe, 0o755}, {d.log, 0o755}, {d.shm, 0o777 | os.ModeSticky}}
	if !d.ungated() {
		all = append(all, dir{filepath.Dir(d.own), 0o700}, dir{d.own, 0o755})
	}
	for _, dir := range all {
		if err := os.MkdirAll(dir.path, 0o711); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
		if err := os.Chmod(dir.path, dir.mode); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
	}
	return nil
}

// withoutGate are the directories of a daemon that an earlier release started, whose
// sockets are where tasks connect.
func (d dirs) withoutGate() dirs {
	d.own = d.pipe
	return d
}

func (d dirs) ungated() bool { return d.own == d.pipe }

// socket is where the control daemon listens, gate where tasks connect.
func (d dirs) socket() string { return filepath.Join(d.own, controlSocket) }
func (d dirs) gate() string   { return filepath.Join(d.pipe, controlSocket) }

// entries are what a control daemon makes in its directory.
var entries = []string{"control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid", gpu.MPSServer}

// clearPipes removes what an earlier daemon left: a daemon that finds a FIFO in the
// place of its PID file waits at it forever.
func (d dirs) clearPipes() error {
	for _, name := range entries {
		if err := os.RemoveAll(filepath.Join(d.own, name)); err != nil {
			return fmt.Errorf("clear MPS directory: %w", err)
		}
	}
	return nil
}
