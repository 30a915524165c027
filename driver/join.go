package driver

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// joinTimeout is how long a start waits for the task whose namespaces it shares:
// Nomad starts the tasks of a group together, and one may have to pull its image.
const joinTimeout = time.Minute

// checkPartners refuses a task that wants to share a namespace with itself.
func checkPartners(cfg *drivers.TaskConfig, config spec.Config, m *spec.Mistakes) {
	partners := config.Partners()
	for _, shared := range []struct{ key, task string }{
		{"network_mode", partners.Network}, {"ipc_mode", partners.IPC}, {"pid_mode", partners.PID},
	} {
		if shared.task == cfg.Name {
			m.Add(shared.key, "\"task:%s\" names the task itself; name another one of the group", cfg.Name)
		}
	}
}

// join finds the namespaces that the task shares with others of its allocation,
// and the shared memory that goes with an IPC namespace.
func (d *Driver) join(ctx context.Context, p *startPlan) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	partners := p.config.Partners()
	for _, shared := range []struct {
		key, task, kind string
		into            *string
	}{
		{"network_mode", partners.Network, "net", &p.namespaces.Network},
		{"ipc_mode", partners.IPC, "ipc", &p.namespaces.IPC},
		{"pid_mode", partners.PID, "pid", &p.namespaces.PID},
	} {
		if shared.task == "" {
			continue
		}
		owner, pid, err := d.partner(ctx, p.cfg.AllocID, shared.task)
		if err != nil {
			return structs.NewRecoverableError(fmt.Errorf("%s \"task:%s\": %w", shared.key, shared.task, err), true)
		}
		*shared.into = fmt.Sprintf("/proc/%d/ns/%s", pid, shared.kind)
		if shared.task != partners.IPC {
			continue
		}
		p.shmDir = newSharedMemory(p.env.settings).of(owner.ID)
		if _, err := os.Stat(p.shmDir); err != nil {
			return fmt.Errorf("ipc_mode \"task:%s\": task %q keeps its IPC namespace to itself; give it ipc_mode = \"shareable\"", shared.task, shared.task)
		}
	}
	return nil
}

// partner waits until a task of the allocation runs, and returns its container
// and its first process.
func (d *Driver) partner(ctx context.Context, allocID, name string) (*runtime.Container, int, error) {
	t, err := d.tasks.running(ctx, allocID, name)
	if err != nil {
		return nil, 0, fmt.Errorf("no task %q of this allocation runs with this driver; start it first, as a prestart task (lifecycle { hook = \"prestart\" sidecar = true }): %w", name, err)
	}
	status, err := t.container.Status(ctx)
	if err != nil {
		return nil, 0, err
	}
	if !status.Running {
		return nil, 0, fmt.Errorf("task %q has just ended", name)
	}
	return t.container, status.PID, nil
}
