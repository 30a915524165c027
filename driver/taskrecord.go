package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// taskRecords are what the driver must know of its containers while containerd is
// away: which tasks they are, and where their processes are found. They hold for one
// boot, as the processes do.
type taskRecords struct{ dir string }

func newTaskRecords(s config.Settings) taskRecords {
	return taskRecords{dir: filepath.Join(s.StateDir, "tasks")}
}

// taskRecord is one container, as containerd knows it.
type taskRecord struct {
	Version   int               `json:"version"`
	Container string            `json:"container"`
	Image     string            `json:"image"`
	Labels    map[string]string `json:"labels"`
	Record    record            `json:"record"`
	// Destroyed is set when Nomad wants the task no more and containerd could not
	// remove it.
	Destroyed bool `json:"destroyed,omitempty"`
}

const taskRecordVersion = 1

// recordTask writes what must be known of a container while containerd is away.
func (d *Driver) recordTask(c *runtime.Container, r record) error {
	env, err := d.configured()
	if err != nil {
		return err
	}
	return newTaskRecords(env.settings).write(taskRecord{Container: c.ID, Image: c.Image, Labels: c.Labels, Record: r})
}

func (r taskRecords) path(id string) string { return filepath.Join(r.dir, id, "task.json") }

// write is atomic: a reader finds the old record or the new one.
func (r taskRecords) write(t taskRecord) error {
	t.Version = taskRecordVersion
	text, _ := json.Marshal(t) // see record.encode
	if err := os.MkdirAll(filepath.Dir(r.path(t.Container)), 0o700); err != nil {
		return fmt.Errorf("write record of container %s: %w", t.Container, err)
	}
	return statedir.WriteFile(r.path(t.Container), text, 0o600)
}

// markDestroyed notes that a container is to be removed, if it has a record.
func (r taskRecords) markDestroyed(id string) error {
	t, err := r.read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	t.Destroyed = true
	return r.write(t)
}

func (r taskRecords) read(id string) (taskRecord, error) {
	var t taskRecord
	text, err := os.ReadFile(r.path(id))
	if err != nil {
		return t, fmt.Errorf("read record of container %s: %w", id, err)
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return t, fmt.Errorf("read record of container %s: %w", id, err)
	}
	if t.Version != taskRecordVersion || t.Container != id {
		return t, fmt.Errorf("read record of container %s: it has version %d and is of %q", id, t.Version, t.Container)
	}
	return t, nil
}

// find returns the records that match. One that is being written or removed is not
// there yet, or no more.
func (r taskRecords) find(matches func(taskRecord) bool) ([]taskRecord, error) {
	ids, err := r.IDs(time.Now().Add(time.Hour))
	if err != nil {
		return nil, err
	}
	var found []taskRecord
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

// ofTask returns the records of a task.
func (r taskRecords) ofTask(taskID string) ([]taskRecord, error) {
	return r.find(func(t taskRecord) bool { return t.Labels[labelTaskID] == taskID })
}

func (r taskRecords) IDs(before time.Time) ([]string, error) {
	return hostdir.NamesOlderThan(r.dir, before)
}

// Remove undoes write.
func (r taskRecords) Remove(_ context.Context, id string) error {
	return os.RemoveAll(filepath.Join(r.dir, id))
}

// container is the record's container, of which containerd is asked when it is back.
func (t taskRecord) container(r *runtime.Runtime) *runtime.Container {
	return r.Unloaded(t.Container, t.Image, t.Labels, t.Record.encode())
}
