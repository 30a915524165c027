// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"path/filepath"
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
