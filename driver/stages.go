package driver

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// stages are where files of tenants are shown to containers while they are made.
type stages struct{ dir string }

func newStages(s config.Settings) stages { return stages{dir: filepath.Join(s.StateDir, "stages")} }

func (s stages) create(id string) (*rooted.Stage, error) {
	return rooted.NewStage(filepath.Join(s.dir, id))
}

func (s stages) Remove(_ context.Context, id string) error {
	return rooted.RemoveStage(filepath.Join(s.dir, id))
}

func (s stages) IDs(before time.Time) ([]string, error) { return hostdir.NamesOlderThan(s.dir, before) }

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
