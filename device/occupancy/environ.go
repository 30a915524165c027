// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// readEnvironments reads with what environment each process was started, so far
// as that is bounded. One that has ended in between has none.
func readEnvironments(yield func([]byte, error) bool) {
	pids, err := procs.PIDs()
	if err != nil {
		yield(nil, err)
		return
	}
	for _, pid := range pids {
		text, err := readBounded(environPath(pid))
		if noDescriptor := errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE); noDescriptor {
			yield(nil, err)
			return
		}
		if len(text) > 0 && !yield(text, nil) {
			return
		}
	}
}

// maxEnvironment is how much of a process's environment is read: programs choose
// its size, and this one's memory is not theirs.
const maxEnvironment = 256 << 10

// Environ is nil for a process whose environment cannot be read, as of one that has ended.
func Environ(pid int) []byte {
	text, err := readBounded(environPath(pid))
	if err != nil {
		return nil
	}
	return text
}

func environPath(pid int) string { return fmt.Sprintf("/proc/%d/environ", pid) }

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxEnvironment))
}
