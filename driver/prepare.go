// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"path"
	"slices"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

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

// setStage shows the task's files in a stage, and makes the author's mounts lead
// there.
func (p *startPlan) setStage(id string) (err error) {
	if p.stage, err = newStages(p.env.settings).create(id); err != nil {
		return err
	}
	if p.shown, err = p.files.show(p.stage); err != nil {
		return err
	}
	p.useNamespaces()
	p.config.Mounts = slices.Clone(p.config.Mounts)
	for i := range p.config.Mounts {
		if path, ok := p.shown[shownMount(i)]; ok {
			p.config.Mounts[i].Source = path
		}
	}
	return nil
}

// prepareSelf makes the directory of a GPU task's socket, and shows it to the container.
func (p *startPlan) prepareSelf(id string) error {
	if len(p.share.Holdings) == 0 {
		return nil
	}
	var targets []string
	for _, m := range p.cfg.Mounts {
		targets = append(targets, path.Clean(m.TaskPath))
	}
	for _, m := range p.config.Mounts {
		targets = append(targets, m.Target)
	}
	if p.selfHidden = spec.HidesSelf(targets); p.selfHidden != "" {
		return nil
	}
	dirs, files := p.share.SelfTargets()
	program := selfProgram(p.env.settings)
	dir, err := newSelfDirs(p.env.settings).create(id, dirs, append(files, gpu.SelfProgram[len(gpu.SelfDir)+1:]))
	if err != nil {
		return err
	}
	p.share.ShowSelf(dir, program)
	return nil
}

// useNamespaces has the container join what the stage shows of its partners.
func (p *startPlan) useNamespaces() {
	for kind, into := range map[string]*string{"net": &p.namespaces.Network, "ipc": &p.namespaces.IPC, "pid": &p.namespaces.PID} {
		if path, ok := p.shown[shownNamespace(kind)]; ok {
			*into = path
		}
	}
}
