// SPDX-License-Identifier: MPL-2.0

// Package output connects a task's output with what Nomad made for it.
//
// Nomad's log collector reads a task's output from a pipe until its last writer
// closes it, and reads no more until Nomad starts it again, which it does with
// each restart of the task, but not when it asks a new process of the driver to
// repeat a start. So a start leaves a mark before the pipe is opened, and a start
// that finds its own mark must neither let the pipe close nor write to one that
// was closed: it would have no reader, and the task would block when it is full.
//
// The pipes lie in a directory that tasks of other drivers may write to, so what
// is opened must be a pipe, and what the shim opens later must be the same one.
package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Output is where a task's output goes.
type Output struct {
	mark mark
	// streams are stdout and stderr.
	streams [2]stream
	// repeated is whether this start was begun before.
	repeated bool
	// PipesAlive is whether an earlier container of this start had the pipes open
	// until now.
	PipesAlive bool
	held       []*os.File
}

// stream is one of a task's outputs: a file, nil for nowhere, and the directory
// that it lies in where Nomad collects it.
type stream struct {
	name, base string
	file, dir  *rooted.Handle
}

// Open looks at what an earlier attempt of the same start left; where it
// had opened the pipes, they stay open from now on.
func Open(cfg *drivers.TaskConfig, marks Marks) (*Output, error) {
	o := &Output{mark: marks.of(cfg.ID)}
	for i, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		var err error
		if o.streams[i], err = openStream(cfg.AllocDir, []string{"stdout", "stderr"}[i], path); err != nil {
			o.Release()
			return nil, err
		}
	}
	o.repeated = o.mark.exists()
	if !o.repeated {
		return o, nil
	}
	for _, s := range o.streams {
		if s.file == nil {
			continue
		}
		// A pipe without a reader cannot be held, and needs not be.
		if f, err := s.file.OpenWriter(); err == nil {
			o.held = append(o.held, f)
		}
	}
	return o, nil
}

// openStream opens the end of an output that Nomad made: a pipe in the
// allocation's directory, which tasks can write to, or /dev/null.
func openStream(allocDir, name, path string) (stream, error) {
	s := stream{name: name, base: filepath.Base(path)}
	if path == "" {
		return s, nil
	}
	err := s.open(allocDir, path)
	if err == nil {
		return s, nil
	}
	s.close()
	return stream{}, fmt.Errorf("open the task's %s: %w", name, err)
}

func (s *stream) open(allocDir, path string) error {
	within, err := filepath.Rel(allocDir, filepath.Dir(path))
	if err != nil || !filepath.IsLocal(within) {
		s.file, err = rooted.OpenHost(path)
		if err == nil && !s.file.IsNull() && !s.file.IsPipe() && !s.file.IsRegular() {
			err = rooted.ErrKind
		}
		return err
	}
	alloc, err := rooted.OpenHost(allocDir)
	if err != nil {
		return err
	}
	defer alloc.Close()
	if s.dir, err = alloc.Child(strings.Split(within, "/")...); err != nil {
		return err
	}
	if s.file, err = s.dir.Child(s.base); err != nil {
		return err
	}
	if !s.file.IsPipe() {
		return fmt.Errorf("%q is not a pipe", s.base)
	}
	return nil
}

func (s *stream) close() {
	for _, h := range []*rooted.Handle{s.file, s.dir} {
		if h != nil {
			_ = h.Close()
		}
	}
}

// Opening leaves the mark, before the container opens the pipes.
func (o *Output) Opening() error { return o.mark.set() }

// Release closes the held files, once the container has the pipes.
func (o *Output) Release() {
	for _, f := range o.held {
		_ = f.Close()
	}
	for i := range o.streams {
		o.streams[i].close()
	}
	o.held = nil
}

// Stdio returns where the container's output goes, in its stage. When the pipes
// were closed, it goes to the log files themselves, after their content; Nomad's
// size limits do not hold then, until the task restarts.
func (o *Output) Stdio(stage *rooted.Stage, terminal bool) (runtime.Stdio, error) {
	var paths [2]string
	for i := range o.streams {
		s := &o.streams[i]
		if s.file == nil {
			continue
		}
		if o.repeated && !o.PipesAlive && !terminal {
			if err := s.useLogFile(); err != nil {
				return runtime.Stdio{}, err
			}
		}
		var err error
		if paths[i], err = stage.Bind(s.name, s.file, rooted.Binding{Propagation: rooted.Private}); err != nil {
			return runtime.Stdio{}, err
		}
	}
	return runtime.Stdio{Stdout: paths[0], Stderr: paths[1], Terminal: terminal}, nil
}

// useLogFile takes the newest log file behind a pipe of Nomad's, such as
// "web.stdout.0" for ".web.stdout.fifo", and makes one where there is none; other
// files stay. A shim appends to a file that is named by its path. By a URL it
// would put both streams into the first.
func (s *stream) useLogFile() error {
	name, isPipe := strings.CutSuffix(s.base, ".fifo")
	if s.dir == nil || !isPipe {
		return nil
	}
	newest, err := newestLog(s.dir, strings.TrimPrefix(name, ".")+".")
	if err != nil {
		return fmt.Errorf("look for the task's logs: %w", err)
	}
	file, err := s.dir.CreateFile(newest, 0o644)
	if err != nil {
		return fmt.Errorf("open the task's log %q: %w", newest, err)
	}
	_ = s.file.Close()
	s.file = file
	return nil
}

// newestLog returns the name with the highest number behind prefix.
func newestLog(dir *rooted.Handle, prefix string) (string, error) {
	f, err := dir.Open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	// Tasks of other drivers make as many files there as they like.
	names, err := f.Readdirnames(maxLogFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if len(names) > maxLogFiles {
		return "", fmt.Errorf("the directory holds more than %d files", maxLogFiles)
	}
	newest := 0
	for _, name := range names {
		if number, found := strings.CutPrefix(name, prefix); found {
			if n, err := strconv.Atoi(number); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return prefix + strconv.Itoa(newest), nil
}

// maxLogFiles is how many files a directory of logs may hold for a task to go on in the
// newest of its own.
const maxLogFiles = 4096
