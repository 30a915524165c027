// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// joinTimeout is how long a start waits for the task whose namespaces it shares:
// Nomad starts the tasks of a group together, and one may have to pull its image.
const joinTimeout = time.Minute

// join finds the namespaces that the task shares with others of its allocation,
// and the shared memory that goes with an IPC namespace.
func (d *Driver) join(ctx context.Context, p *startPlan) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	partners := p.config.Partners()
	for _, shared := range []struct{ key, task, kind string }{
		{"network_mode", partners.Network, "net"}, {"ipc_mode", partners.IPC, "ipc"}, {"pid_mode", partners.PID, "pid"},
	} {
		if shared.task == "" {
			continue
		}
		if t, _ := d.tasks.find(p.cfg.AllocID, shared.task); t == nil {
			d.emit(p.cfg, fmt.Sprintf("waits for task %q to run: %s \"task:%s\"", shared.task, shared.key, shared.task), nil)
		}
		owner, namespace, err := d.partner(ctx, p.cfg.AllocID, shared.task, shared.kind)
		if err != nil {
			return structs.NewRecoverableError(fmt.Errorf("%s \"task:%s\": %w", shared.key, shared.task, err), true)
		}
		p.files.shown = append(p.files.shown, shownFile{name: shownNamespace(shared.kind), handle: namespace, binding: rooted.Binding{Propagation: rooted.Private}})
		if shared.task != partners.IPC {
			continue
		}
		p.shmDir = sharedMemory(p.env.settings).Of(owner.ID)
		if _, err := os.Stat(p.shmDir); err != nil {
			return fmt.Errorf("ipc_mode \"task:%s\": task %q keeps its IPC namespace to itself; give it ipc_mode = \"shareable\"", shared.task, shared.task)
		}
	}
	return nil
}

// partner waits until a task of the allocation runs, and returns its container and
// a namespace of its first process.
func (d *Driver) partner(ctx context.Context, allocID, name, kind string) (*runtime.Container, *rooted.Handle, error) {
	t, err := d.tasks.running(ctx, allocID, name)
	if err != nil {
		return nil, nil, fmt.Errorf("no task %q of this allocation runs with this driver; start it first, as a prestart task (lifecycle { hook = \"prestart\" sidecar = true }): %w", name, err)
	}
	namespace, err := holdNamespace(kind, func() (runtime.Status, error) { return t.container.Status(ctx) })
	if err != nil {
		return nil, nil, fmt.Errorf("task %q: %w", name, err)
	}
	return t.container, namespace, nil
}

// holdNamespace opens a namespace of a task's first process. Once that process has
// ended its number can be another's, the host's own too, so the task is asked again
// afterwards: a process that runs now had its number all the while. From then on the
// namespace is held, and its process is not looked up any more.
func holdNamespace(kind string, status func() (runtime.Status, error)) (*rooted.Handle, error) {
	before, err := status()
	if err != nil {
		return nil, err
	}
	if !before.Running {
		return nil, errJustEnded
	}
	namespace, err := rooted.OpenHost(fmt.Sprintf("/proc/%d/ns/%s", before.PID, kind))
	if err != nil {
		return nil, err
	}
	after, err := status()
	if err == nil && (!after.Running || after.PID != before.PID) {
		err = errJustEnded
	}
	if err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return namespace, nil
}

var errJustEnded = errors.New("it has just ended")
