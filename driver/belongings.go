package driver

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// belongings are what the driver itself keeps on the host for a container, in a
// directory named after it.
type belongings interface {
	// ids names the containers for which there is something older than before.
	ids(before time.Time) ([]string, error)
	// remove undoes what was made, as far as it came; nothing is no error.
	remove(ctx context.Context, id string) error
}

func (s settings) belongings() []belongings {
	return []belongings{newBridges(s), newSharedMemory(s), newHeldPipes(s)}
}

// removeBelongings removes what belongs to a container that does not exist.
func (d *Driver) removeBelongings(id string) error {
	settings, _, _, err := d.parts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var problems []error
	for _, b := range settings.belongings() {
		problems = append(problems, b.remove(ctx, id))
	}
	return errors.Join(problems...)
}

// prepare makes what the driver keeps on the host for a task: MPS pipes, memory
// that it shares, and a network of its own.
func (p *startPlan) prepare(ctx context.Context) error {
	id := p.record.Lease.Container
	pipes, err := newHeldPipes(p.settings).create(id, p.share)
	if err != nil {
		return &spec.NotReadyError{UUID: p.share.Holdings[0].UUID, Reason: err.Error()}
	}
	p.share.PinPipes(pipes)
	if p.config.OffersIPC() {
		dir, err := newSharedMemory(p.settings).create(id, p.config.ShmBytes())
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
	n, err := newBridges(p.settings).create(ctx, id, mappings)
	if err != nil {
		return err
	}
	p.namespaces.Network = n.Namespace
	p.record.Network = &drivers.DriverNetwork{IP: n.IP, PortMap: names}
	return nil
}
