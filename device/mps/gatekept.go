// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// gatePlace is where a gate's socket and log pipe lie: they are made in kept, which only root enters,
// and have a second name in shown, the directory that tasks see. Jobs of docker and podman mount that
// directory, and can mount it writable: their root may remove, replace and lock the files there.
// The gate then puts its own files back. The files themselves stay, and with them what tasks of our
// driver have, which are mounts of each.
type gatePlace struct{ shown, kept string }

// keptBeside is the directory for a gate's files beside the daemon's own.
func keptBeside(own string) string { return filepath.Join(filepath.Dir(own), "gate") }

// gateModes are the modes of the files that tasks see.
var gateModes = map[string]os.FileMode{controlSocket: 0o666, logPipe: 0o622}

// openGate listens in the place of an earlier gate. The plugin finds it when tasks do.
func (p gatePlace) openGate() (*net.UnixListener, error) {
	next := filepath.Join(p.kept, controlSocket+".new")
	err := p.clear(next)
	if err != nil {
		return nil, fmt.Errorf("open gate: %w", err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: next, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("open gate: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = errors.Join(limitQueue(listener), p.begin(next, controlSocket))
	if err == nil {
		err = os.Rename(next, filepath.Join(p.kept, controlSocket))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open gate: %w", err), listener.Close())
	}
	return listener, nil
}

// openLogPipe makes the FIFO into which CUDA programs log. Their output is dropped:
// the daemon's own reader believes all of it, and other bytes than a log stop the
// daemon for good.
func (p gatePlace) openLogPipe() (*os.File, error) {
	path := filepath.Join(p.kept, logPipe)
	err := p.clear(path)
	if err == nil {
		err = unix.Mkfifo(path, 0o622)
	}
	if err == nil {
		err = p.begin(path, logPipe)
	}
	if err != nil {
		return nil, fmt.Errorf("make log pipe: %w", err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// clear removes what an earlier gate kept.
func (p gatePlace) clear(path string) error {
	return errors.Join(os.MkdirAll(p.kept, 0o700), os.RemoveAll(path))
}

const (
	// keepPause is how long to wait after a look that failed, since a task was quicker, and
	// beginTries how often to try at first.
	keepPause  = 10 * time.Millisecond
	beginTries = 100
)

// begin shows a file for the first time.
func (p gatePlace) begin(kept, name string) (err error) {
	for range beginTries {
		if _, err = p.show(kept, name); err == nil || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		time.Sleep(keepPause)
	}
	return err
}

// show gives a kept file its mode, and its name in the directory that tasks see, and reports whether it
// had not both.
func (p gatePlace) show(kept, name string) (changed bool, err error) {
	own, err := os.Lstat(kept)
	if err != nil {
		return false, err
	}
	if own.Mode().Perm() != gateModes[name] {
		changed = true
		if err := os.Chmod(kept, gateModes[name]); err != nil {
			return changed, err
		}
	}
	shown := filepath.Join(p.shown, name)
	if now, err := os.Lstat(shown); err == nil && os.SameFile(own, now) {
		return changed, nil
	}
	next := shown + ".new"
	if err := errors.Join(os.RemoveAll(next), os.Link(kept, next)); err != nil {
		return true, err
	}
	if info, err := os.Lstat(shown); err == nil && info.IsDir() {
		if err := os.RemoveAll(shown); err != nil {
			return true, err
		}
	}
	return true, os.Rename(next, shown)
}

// restore puts back what tasks changed.
func (p gatePlace) restore() (changed bool, err error) {
	for name := range gateModes {
		one, problem := p.show(filepath.Join(p.kept, name), name)
		changed, err = changed || one, errors.Join(err, problem)
	}
	one, problem := restoreDir(p.shown, 0o755)
	return changed || one, errors.Join(err, problem)
}

// keep does so until the context ends. The first time is told.
func (p gatePlace) keep(ctx context.Context, log hclog.Logger) {
	tell := sync.OnceFunc(func() {
		log.Warn("a task changed the directory of the gate, which is restored from now on", "directory", p.shown)
	})
	for ctx.Err() == nil {
		if err := guardDir(ctx, p.shown, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ATTRIB, p.restore, tell); err != nil {
			time.Sleep(keepPause)
		}
	}
}
