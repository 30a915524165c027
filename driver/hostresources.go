// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/network"
	"github.com/nomad-gpu/nomad-gpu/driver/output"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
)

// hostResource is one kind of what the driver itself keeps on the host for containers,
// each in a directory named after its container.
type hostResource interface {
	// IDs names the containers for which there is something older than before.
	IDs(before time.Time) ([]string, error)
	// Remove undoes Make, as far as it came; where there is nothing, it succeeds.
	Remove(ctx context.Context, id string) error
}

func hostResources(s config.Settings) []hostResource {
	// While a start is under way its stage has mounts in the directory of the task's socket.
	return []hostResource{networks(s), sharedMemory(s), pipes(s), newStages(s), newSelfDirs(s), record.StoreIn(s.StateDir)}
}

func networks(s config.Settings) network.Maker {
	return network.New(filepath.Join(s.StateDir, "network"), strings.Split(s.CNIPath, ":"), s.BridgeSubnet)
}

func sharedMemory(s config.Settings) hostdir.SharedMemory {
	return hostdir.SharedMemoryIn(filepath.Join(s.StateDir, "shm"))
}

func pipes(s config.Settings) hostdir.Pipes {
	return hostdir.PipesIn(filepath.Join(s.StateDir, "pipes"))
}

// outputMarks go by themselves: a start may be repeated after its container has gone.
func outputMarks(s config.Settings) output.Marks {
	return output.MarksIn(filepath.Join(s.StateDir, "outputs"))
}
