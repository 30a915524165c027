package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
	"github.com/nomad-gpu/nomad-gpu/driver/self"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// selfDirs are the directories in which tasks find their sockets: one per container, which
// the container sees by a read-only mount.
type selfDirs struct{ dir string }

func newSelfDirs(s config.Settings) selfDirs { return selfDirs{dir: filepath.Join(s.StateDir, "self")} }

// of returns the directory of a container; it need not exist.
func (d selfDirs) of(id string) string { return filepath.Join(d.dir, id) }

// create makes the directory of a container, with places for what is mounted in it: the
// container can make none.
func (d selfDirs) create(id string, dirs, files []string) (string, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of the task's socket: %w", err)
	}
	at := d.of(id)
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(at, dir), 0o755); err != nil {
			return "", fmt.Errorf("make the directory of the task's socket: %w", err)
		}
	}
	for _, file := range files {
		place := filepath.Join(at, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(place), 0o755), os.WriteFile(place, nil, 0o644)); err != nil {
			return "", fmt.Errorf("make the directory of the task's socket: %w", err)
		}
	}
	return at, nil
}

// Remove undoes create; where there is nothing, it succeeds.
func (d selfDirs) Remove(_ context.Context, id string) error { return os.RemoveAll(d.of(id)) }

func (d selfDirs) IDs(before time.Time) ([]string, error) {
	return hostdir.NamesOlderThan(d.dir, before)
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

// selfProgram is the host's program that tasks speak to their sockets with, "" where it is
// not installed.
func selfProgram(s config.Settings) string {
	if s.SelfPath == "" {
		return ""
	}
	program, err := exec.LookPath(s.SelfPath)
	if err != nil {
		return ""
	}
	return program
}

// serveSelf answers what a task asks, until it has ended.
func (d *Driver) serveSelf(ctx context.Context, t *task) {
	n, err := d.configured()
	if err != nil || len(t.record.Lease.Holdings) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket, err := self.Listen(newSelfDirs(n.settings).of(t.container.ID), selfOf{d, t})
	if errors.Is(err, fs.ErrNotExist) {
		return // the task was started without one
	}
	if err != nil {
		t.logger.Warn("the task cannot ask about its GPU: its socket could not be made", "error", err)
		return
	}
	go func() {
		select {
		case <-t.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	socket.Serve(ctx)
	d.seats.asked(t.record.Lease.ID, true) // what it asked for ends with it
	t.saved.stop()
}
