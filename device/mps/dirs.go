package mps

import (
	"fmt"
	"os"
	"path/filepath"
)

// dirs are a daemon's directories.
type dirs struct{ base, pipe, log, shm string }

// shortUUID is how much of a UUID names its directory: "GPU-1a2b3c4d-5e6f". The
// path of a socket has little more than a hundred characters.
const shortUUID = 17

// maxSocketPath is the longest path of a socket; longestSocket is the longest
// name of one below the MPS directory.
const (
	maxSocketPath = 107
	longestSocket = "/GPU-12345678-1234/pipe/control_privileged"
)

func dirsIn(root, uuid string) dirs {
	base := filepath.Join(root, uuid[:min(len(uuid), shortUUID)])
	return dirs{base, filepath.Join(base, "pipe"), filepath.Join(base, "log"), filepath.Join(base, "shm")}
}

// make creates the directories. Tasks run as any user: they must reach the pipe
// directory and write to the shared memory, and nothing else.
func (d dirs) make() error {
	for path, mode := range map[string]os.FileMode{
		d.base: 0o711, d.pipe: 0o755, d.log: 0o755, d.shm: 0o777 | os.ModeSticky,
	} {
		if err := os.MkdirAll(path, 0o711); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
	}
	return nil
}

// socket is where the control daemon listens.
func (d dirs) socket() string { return filepath.Join(d.pipe, "control") }

// entries are what a control daemon makes in its pipe directory.
var entries = []string{"control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"}

// clearPipes removes what an earlier daemon left, or a task put there: a daemon
// that finds a FIFO in the place of its PID file waits at it forever.
func (d dirs) clearPipes() error {
	for _, name := range entries {
		if err := os.RemoveAll(filepath.Join(d.pipe, name)); err != nil {
			return fmt.Errorf("clear MPS pipe directory: %w", err)
		}
	}
	return nil
}
