// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// Options of a supervisor.
type Options struct {
	Logger hclog.Logger
	// StateDir is the node's state directory; the daemons' directories are below
	// it, in "mps".
	StateDir string
	// Program is NVIDIA's control program, by path or by name.
	Program string
	// LibraryPath is where servers find the driver's libraries, if not in the usual
	// places, as in LD_LIBRARY_PATH.
	LibraryPath string
	// Self is the plugin's own binary, which starts daemons (see Exec).
	Self string
	// MultiUser lets clients of different users share a server.
	MultiUser bool
	// HostShm gives the daemons the host's /dev/shm instead of one of their own.
	HostShm bool
	// ShmMiB is the size of a daemon's own /dev/shm, which its tasks share.
	ShmMiB int64
	// Tenant finds out which task of another driver a process is of.
	Tenant TenantFinder
	// Changed is called whenever a daemon became ready, or ceased to be.
	Changed   func()
	intervals intervals
	timeout   time.Duration
	// startScope moves processes to a systemd scope; nil for systemd's own.
	startScope func(context.Context, scope) error
}

const hostShm = "/dev/shm"

// Supervisor keeps the daemons of a node.
type Supervisor struct {
	options Options
	root    string

	mu      sync.Mutex
	keepers map[string]*keeper
	// swept is set once daemons that an earlier run left, and that are not wanted
	// any more, were ended.
	swept   bool
	stopped sync.WaitGroup
}

// New makes a supervisor that keeps nothing yet.
func New(o Options) (*Supervisor, error) {
	if o.intervals == (intervals{}) {
		o.intervals = intervals{alive: time.Second, answer: 10 * time.Second, retry: time.Second, maxRetry: 30 * time.Second, maxFailures: 3}
	}
	if o.timeout == 0 {
		o.timeout = 10 * time.Second
	}
	if o.startScope == nil && systemdRunning() {
		o.startScope = startSystemdScope
	}
	root := rootIn(o.StateDir)
	if err := CheckStateDir(o.StateDir); err != nil {
		return nil, err
	}
	if o.ShmMiB <= 0 && !o.HostShm {
		return nil, fmt.Errorf("shared memory of %d MiB is none: the kernel would take 0 for no limit", o.ShmMiB)
	}
	if err := os.MkdirAll(root, 0o711); err != nil {
		return nil, fmt.Errorf("make MPS directory: %w", err)
	}
	// Clients of any user walk through to the pipe directory.
	for _, path := range []string{o.StateDir, root} {
		if err := os.Chmod(path, 0o711); err != nil {
			return nil, fmt.Errorf("make MPS directory: %w", err)
		}
	}
	return &Supervisor{options: o, root: root, keepers: map[string]*keeper{}}, nil
}

// Want names all daemons that shall run. Others that were wanted before end.
func (s *Supervisor) Want(specs []Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]bool{}
	folders := map[string]bool{}
	for _, spec := range specs {
		wanted[spec.UUID] = true
		folders[filepath.Base(dirsIn(s.root, spec.UUID).base)] = true
		if k, ok := s.keepers[spec.UUID]; ok {
			k.want(spec)
			continue
		}
		s.keepers[spec.UUID] = s.keep(spec)
	}
	for uuid, k := range s.keepers {
		if !wanted[uuid] {
			delete(s.keepers, uuid)
			s.stopped.Go(func() { k.stop(true) })
		}
	}
	s.sweep(folders)
}

// Ask has every daemon asked how it is, at once: something happened to a GPU.
func (s *Supervisor) Ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keepers {
		select {
		case k.ask <- struct{}{}:
		default: // it is about to be asked
		}
	}
}

// sweep ends what an earlier run of the plugin left and this one does not want.
func (s *Supervisor) sweep(folders map[string]bool) {
	if s.swept {
		return
	}
	s.swept = true
	entries, err := os.ReadDir(s.root)
	if err != nil {
		s.options.Logger.Warn("cannot look for MPS control daemons of an earlier run", "error", err)
		return
	}
	for _, entry := range entries {
		if folder := entry.Name(); !folders[folder] {
			s.stopped.Go(func() { s.control(folder).end(s.options.Logger) })
		}
	}
}

func (s *Supervisor) control(uuid string) control {
	d := dirsIn(s.root, uuid)
	return control{
		Control: mpsctl.Control{Program: s.options.Program, PipeDir: d.own, Timeout: s.options.timeout,
			Env: []string{"CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_MPS_LOG_DIRECTORY=" + d.log}},
		self: s.options.Self, libraryPath: s.options.LibraryPath, multiUser: s.options.MultiUser, hostShm: s.options.HostShm, shmMiB: s.options.ShmMiB, uuid: uuid, dirs: d,
		startScope: s.options.startScope,
	}
}

// Status tells how a device's daemon is.
func (s *Supervisor) Status(uuid string) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keepers[uuid]; ok {
		return k.Status()
	}
	return Status{Reason: "it is not wanted"}
}

// Server reports whether a process is one of the daemons or of their servers,
// which hold memory of the GPU while no task is there.
func (s *Supervisor) Server(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keepers {
		daemon := k.process()
		if daemon.Alive() && (pid == daemon.PID || slices.Contains(children(daemon.PID), pid)) {
			return true
		}
	}
	return false
}

// Close ends the supervision. The daemons go on: tasks depend on them.
func (s *Supervisor) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, k := range s.keepers {
		k.stop(false)
		delete(s.keepers, uuid)
	}
	s.stopped.Wait()
}

func (s *Supervisor) keep(spec Spec) *keeper {
	d := dirsIn(s.root, spec.UUID)
	if s.options.HostShm {
		d.shm = hostShm
	}
	now := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{
		log:       s.options.Logger,
		control:   s.control(spec.UUID),
		tenant:    s.options.Tenant,
		intervals: s.options.intervals, now: time.Now, changed: s.options.Changed,
		spec: spec, emptyAt: spec.EmptyAt, downSince: now,
		cancel: cancel, done: make(chan struct{}), reload: make(chan struct{}, 1), ask: make(chan struct{}, 1), empty: make(chan time.Time, 1),
		status: Status{PipeDir: d.pipe, ControlDir: d.own, LogDir: d.log, ShmDir: d.shm, Reason: "it is being started", Since: now.Truncate(time.Second)},
	}
	k.control.static = spec.Static
	go k.run(ctx)
	return k
}
