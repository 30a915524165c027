// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Under MPS v3 a daemon has one server, and each task a namespace of it with limits of its
// own. The gate puts a program into the namespace of its control group (see
// mpsctl.Places). The server's default namespace is for no task: it has next to nothing, in
// case that a program comes to it.

// leastLimits are those of the default namespace.
var leastLimits = mpsctl.Limits{MemoryMiB: 1, Percent: 1}

// namespaced is MPS v3. How a server is judged is as under v2.
type namespaced struct{ legacy }

func (n namespaced) v3() mpsctl.V3 { return mpsctl.V3{Control: n.Control} }

func (n namespaced) options() ([][]string, error) {
	config := filepath.Join(filepath.Dir(n.dirs.own), "mps.toml")
	text := fmt.Sprintf(`schema_version = "1.0"

[servers.%s]
allowed_devices          = "%s"
pinned_memory_limit      = "%dM"
active_thread_percentage = "%d"
`, gpu.MPSServer, n.uuid, leastLimits.MemoryMiB, leastLimits.Percent)
	if err := statedir.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// The server's log is found where that of v2 is.
	logs := filepath.Join(n.dirs.log, gpu.MPSServer)
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755), os.Symlink("../"+serverLog, filepath.Join(logs, serverLog))); err != nil {
		return nil, err
	}
	args := []string{"-d", "-p", "3", "-a", config}
	if n.multiUser {
		args = append(args, "-m")
	}
	return [][]string{args}, mpsctl.PlacesOf(n.dirs.own).Begin()
}

func (n namespaced) prepare(ctx context.Context, _ Spec) (can features, err error) {
	if can.server, err = n.serving(ctx); err != nil {
		return can, err
	}
	err = n.judge(ctx, can.server, func(quiet int64) error {
		if err := n.awaitReady(ctx, can.server, quiet); err != nil {
			return err
		}
		return n.v3().Limit(ctx, gpu.MPSServer, "default", leastLimits)
	})
	if err != nil {
		return can, err
	}
	can.multiUser, can.priorities, can.protocol = n.multiUser, true, ProtocolV3
	can.multiprocessors, _, err = n.v3().Multiprocessors(ctx)
	return can, err
}

// serving is the process ID of the server. Namespaces end with it, so that a daemon whose
// server has ended is replaced.
func (n namespaced) serving(ctx context.Context) (int, error) {
	server, _, err := n.v3().Server(ctx, gpu.MPSServer)
	switch {
	case err != nil:
		return 0, err
	case server != 0:
		return server, nil
	case n.health.served != 0:
		return 0, errors.Join(errNamespacesLost, n.endLeftovers(n.log))
	}
	why := n.dirs.whyNotStarted(0)
	return 0, errors.Join(&serverError{reason: "its server does not start: " + why}, n.endLeftovers(n.log))
}

var errNamespacesLost = errors.New("its server has ended, and with it the namespaces of its tasks: the control daemon is replaced")

// awaitReady waits for a server that initializes.
func (n namespaced) awaitReady(ctx context.Context, server int, quiet int64) error {
	return n.awaitClients(ctx, server, quiet, func(ctx context.Context, pid int) (ServerState, error) {
		found, state, err := n.v3().Server(ctx, gpu.MPSServer)
		switch {
		case err != nil:
			return "", err
		case found != pid:
			return "", mpsctl.ErrNoServer
		}
		return stateOf(state), nil
	})
}

// stateOf reads a server's state. NVIDIA's pages have "Ready" alone: what else there is is
// taken for a fault, unless it speaks of a beginning.
func stateOf(word string) ServerState {
	switch word {
	case "Ready":
		return ServerActive
	case "Initializing", "Starting":
		return ServerInitializing
	}
	return ServerFault
}

func (n namespaced) confirm(ctx context.Context, _ Spec, _ int) error {
	server, err := n.serving(ctx)
	if err != nil {
		return err
	}
	return n.judge(ctx, server, func(quiet int64) error {
		if n.health.served != 0 && n.health.served != server {
			return errors.Join(errNamespacesLost, n.endLeftovers(n.log))
		}
		if err := n.awaitReady(ctx, server, quiet); err != nil {
			return err
		}
		if err := n.v3().Confirm(ctx, gpu.MPSServer, "default", leastLimits); err != nil {
			return fmt.Errorf("%w: %w", errUntrue, err)
		}
		return nil
	})
}

// sweep removes namespaces that belong to no task: the driver that made them was killed.
func (n namespaced) sweep(ctx context.Context, names []string) {
	for _, name := range names {
		if name == "default" {
			continue
		}
		err := mpsctl.PlacesOf(n.dirs.own).Remove(name)
		if err == nil {
			err = n.v3().Close(ctx, gpu.MPSServer, name)
		}
		if err != nil && !errors.Is(err, mpsctl.ErrInUse) {
			n.log.Warn("a namespace of no task stays", "device", n.uuid, "namespace", name, "error", err)
		}
	}
}

func (k *keeper) dialectOf(p Protocol) dialect {
	if p == ProtocolV3 {
		return namespaced{k.legacy()}
	}
	return k.legacy()
}
