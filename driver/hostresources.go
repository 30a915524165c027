package driver

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/network"
	"github.com/nomad-gpu/nomad-gpu/driver/output"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// hostResource is one kind of what the driver itself keeps on the host for containers,
// each in a directory named after its container.
type hostResource interface {
	// IDs names the containers for which there is something older than before.
	IDs(before time.Time) ([]string, error)
	// Remove undoes what was made, as far as it came; where there is nothing, it succeeds.
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

// remove deletes a container and all that belongs to it, under a context of its
// own: it must also succeed when the call that needs it was canceled. Its record
// goes after what is found by it alone; host resources without a container are found
// by themselves.
func (d *Driver) remove(c *runtime.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	n, err := d.configured()
	if err != nil {
		return err
	}
	d.releaseMemory(ctx, n, c) // the control group ends with the process
	if err := c.End(ctx); err != nil {
		// Whatever happens to its record: nothing of it may run.
		return errors.Join(err, cgroups.Empty(ctx, record.Cgroup(n.settings.Namespace, c), cgroups.Unified()))
	}
	if err := cgroups.Remove(ctx, record.Cgroup(n.settings.Namespace, c), cgroups.Unified()); err != nil {
		return err
	}
	if r, err := record.Of(c); err == nil {
		d.returnPartition(ctx, n, r.Lease)
	}
	if err := c.Remove(ctx); err != nil {
		return err
	}
	if err := d.removeHostResources(c.ID); err != nil {
		return err
	}
	if c.Labels[record.LabelManaged] == "" {
		return nil
	}
	if err := n.runtime.TouchImage(ctx, c.Image, time.Now()); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		d.logger.Debug("use of an image is not recorded", "image", c.Image, "error", err)
	}
	return nil
}

// removeHostResources removes what belongs to a container that does not exist.
func (d *Driver) removeHostResources(id string) error {
	n, err := d.configured()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var problems []error
	for _, r := range hostResources(n.settings) {
		problems = append(problems, r.Remove(ctx, id))
	}
	return errors.Join(problems...)
}

// prepare makes what the driver keeps on the host for a task: a stage with the
// files that it is to see, an MPS directory, memory that it shares, and a network of its
// own.
func (p *startPlan) prepare(ctx context.Context) error {
	id := p.record.Lease.Container
	if err := p.setStage(id); err != nil {
		return err
	}
	if daemon := p.share.PipeDir(); daemon != "" {
		dir, err := pipes(p.env.settings).Create(id, daemon)
		if err != nil {
			return &spec.NotReadyError{UUID: p.share.Holdings[0].UUID, Reason: err.Error()}
		}
		p.share.ShowPipes(dir)
	}
	if err := p.prepareSelf(id); err != nil {
		return err
	}
	if p.config.OffersIPC() {
		dir, err := sharedMemory(p.env.settings).Create(id, p.config.ShmBytes())
		if err != nil {
			return err
		}
		p.shmDir = dir
	}
	if !p.config.UsesBridge() {
		return nil
	}
	mappings, names, err := portMappings(p.cfg, p.config.Ports)
	if err != nil {
		return err
	}
	n, err := networks(p.env.settings).Create(ctx, id, mappings)
	if err != nil {
		return err
	}
	p.namespaces.Network = n.Namespace
	p.record.Network = &drivers.DriverNetwork{IP: n.IP, PortMap: names}
	return nil
}
