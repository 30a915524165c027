// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/procfs"
)

// Containerd 2, when it starts and finds a shim of containerd 1 whose process has
// ended, cleans it away with the exit code, and so loses what ends while one is
// replaced by the other. The shim itself knows until then. So a wait that
// containerd breaks off is taken to the shim.

// shimSocket finds the socket of the shim of a container of containerd 1 by the
// container's first process: the shim is its parent and works in the directory
// of the bundle, where the address stands. It returns "" where there is none, as
// with containerd 2, which needs no such help (see createSandbox).
func shimSocket(pid uint32) string {
	process, err := procfs.NewProc(int(pid))
	if err != nil {
		return ""
	}
	stat, err := process.Stat()
	if err != nil {
		return ""
	}
	shim, err := procfs.NewProc(stat.PPID)
	if err != nil {
		return ""
	}
	bundle, err := shim.Cwd()
	if err != nil {
		return ""
	}
	address, err := os.ReadFile(filepath.Join(bundle, "address"))
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimSpace(string(address)), "unix://")
}

// waitAtShim waits for the end of a container's process without containerd.
func (c *Container) waitAtShim(ctx context.Context, socket string) (Exit, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return Exit{}, fmt.Errorf("wait for container %s at its shim: %w", c.ID, err)
	}
	shim := ttrpc.NewClient(conn)
	defer shim.Close()
	end, err := task.NewTTRPCTaskClient(shim).Wait(ctx, &task.WaitRequest{ID: c.ID})
	if err != nil {
		return Exit{}, fmt.Errorf("wait for container %s at its shim: %w", c.ID, err)
	}
	return Exit{Code: int(end.ExitStatus), At: end.ExitedAt.AsTime()}, nil
}
