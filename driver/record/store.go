// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Store are what the driver must know of its containers while containerd is
// away: which tasks they are, and where their processes are found. They hold for one
// boot, as the processes do.
type Store struct{ dir string }

// StoreIn keeps records in the driver's state directory.
func StoreIn(stateDir string) Store {
	return Store{dir: filepath.Join(stateDir, "tasks")}
}

// Kept is one container, as containerd knows it.
type Kept struct {
	Version   int               `json:"version"`
	Container string            `json:"container"`
	Image     string            `json:"image"`
	Labels    map[string]string `json:"labels"`
	Record    Record            `json:"record"`
	// Destroyed is set when Nomad wants the task no more and containerd could not
	// remove it.
	Destroyed bool `json:"destroyed,omitempty"`
}

const keptVersion = 1

func (r Store) path(id string) string { return filepath.Join(r.dir, id, "task.json") }

// Write is atomic: a reader finds the old record or the new one.
func (r Store) Write(t Kept) error {
	t.Version = keptVersion
	text, _ := json.Marshal(t) // see Record.Encode
	if err := os.MkdirAll(filepath.Dir(r.path(t.Container)), 0o700); err != nil {
		return fmt.Errorf("write record of container %s: %w", t.Container, err)
	}
	return statedir.WriteFile(r.path(t.Container), text, 0o600)
}

// MarkDestroyed notes that a container is to be removed, if it has a record.
func (r Store) MarkDestroyed(id string) error {
	t, err := r.read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	t.Destroyed = true
	return r.Write(t)
}

func (r Store) read(id string) (Kept, error) {
	var t Kept
	text, err := os.ReadFile(r.path(id))
	if err != nil {
		return t, fmt.Errorf("read record of container %s: %w", id, err)
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return t, fmt.Errorf("read record of container %s: %w", id, err)
	}
	if t.Version != keptVersion || t.Container != id {
		return t, fmt.Errorf("read record of container %s: it has version %d and is of %q", id, t.Version, t.Container)
	}
	return t, nil
}

// Find returns the records that match. One that is being written or removed is not
// there yet, or no more.
func (r Store) Find(matches func(Kept) bool) ([]Kept, error) {
	ids, err := r.IDs(time.Now().Add(time.Hour))
	if err != nil {
		return nil, err
	}
	var found []Kept
	var problems []error
	for _, id := range ids {
		t, err := r.read(id)
		switch {
		case err == nil && matches(t):
			found = append(found, t)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			problems = append(problems, err)
		}
	}
	return found, errors.Join(problems...)
}

// OfTask returns the records of a task.
func (r Store) OfTask(taskID string) ([]Kept, error) {
	return r.Find(func(t Kept) bool { return t.Labels[LabelTaskID] == taskID })
}

// IDs names the containers with a record that is older than before.
func (r Store) IDs(before time.Time) ([]string, error) {
	return hostdir.NamesOlderThan(r.dir, before)
}

// Remove undoes write.
func (r Store) Remove(_ context.Context, id string) error {
	return os.RemoveAll(filepath.Join(r.dir, id))
}

// Unloaded is the record's container; containerd is asked about it when it is back.
func (t Kept) Unloaded(r *runtime.Runtime) *runtime.Container {
	return r.Unloaded(t.Container, t.Image, t.Labels, t.Record.Encode())
}
