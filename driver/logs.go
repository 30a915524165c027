package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// Nomad's log collector reads a task's output from a pipe until its last writer
// closes it, and reads no more until Nomad starts it again, which it does with
// each restart of the task, but not when it asks a new process of the driver to
// repeat a start. So a start leaves a mark before the pipe is opened, and a start
// that finds its own mark must neither let the pipe close nor write to one that
// was closed: nobody would read it, and the task would block when it is full.

// outputMark is the file in the task's directory, out of the container's sight,
// that holds the ID of the start which opened the pipes.
const outputMark = "output-opened-by"

// outputs is where a task's output goes.
type outputs struct {
	cfg *drivers.TaskConfig
	// repeated is whether this start was begun before.
	repeated bool
	// pipesAlive is whether an earlier container of this start had the pipes open
	// until now.
	pipesAlive bool
	held       []*os.File
}

// newOutputs looks at what an earlier attempt of the same start left; where it
// had opened the pipes, they stay open from now on.
func newOutputs(cfg *drivers.TaskConfig) *outputs {
	o := &outputs{cfg: cfg}
	mark, err := os.ReadFile(o.mark())
	if err != nil || string(mark) != cfg.ID {
		return o
	}
	o.repeated = true
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		// A pipe that nobody reads cannot be held, and needs not be.
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			o.held = append(o.held, os.NewFile(uintptr(fd), path))
		}
	}
	return o
}

// opening leaves the mark, before the container opens the pipes.
func (o *outputs) opening() error {
	if err := os.WriteFile(o.mark(), []byte(o.cfg.ID), 0o600); err != nil {
		return fmt.Errorf("mark the task's output: %w", err)
	}
	return nil
}

func (o *outputs) mark() string { return filepath.Join(o.cfg.TaskDir().Dir, outputMark) }

// release closes what was held, once the container has the pipes.
func (o *outputs) release() {
	for _, f := range o.held {
		_ = f.Close()
	}
	o.held = nil
}

// stdio returns where the container's output goes. When the pipes were closed,
// it goes to the log files themselves, after what is there; Nomad's size limits
// do not hold then, until the task restarts.
func (o *outputs) stdio(terminal bool) (runtime.Stdio, error) {
	s := runtime.Stdio{Stdout: o.cfg.StdoutPath, Stderr: o.cfg.StderrPath, Terminal: terminal}
	if o.repeated && !o.pipesAlive && !terminal {
		var err error
		if s.Stdout, err = logFileOf(s.Stdout); err != nil {
			return s, err
		}
		if s.Stderr, err = logFileOf(s.Stderr); err != nil {
			return s, err
		}
	}
	return s, nil
}

// logFileOf returns the newest log file behind a pipe of Nomad's, such as
// "/…/web.stdout.0" for "/…/.web.stdout.fifo", and makes one where there is none;
// other paths stay. A shim appends to a file that is named by its path. By a URL
// it would put both streams into the first.
func logFileOf(pipe string) (string, error) {
	dir, base := filepath.Split(pipe)
	name, isPipe := strings.CutSuffix(base, ".fifo")
	if !isPipe {
		return pipe, nil
	}
	name = strings.TrimPrefix(name, ".")
	newest := 0
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("look for the task's logs: %w", err)
	}
	for _, entry := range entries {
		if number, found := strings.CutPrefix(entry.Name(), name+"."); found {
			if n, err := strconv.Atoi(number); err == nil {
				newest = max(newest, n)
			}
		}
	}
	path := filepath.Join(dir, name+"."+strconv.Itoa(newest))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return "", fmt.Errorf("open the task's log: %w", err)
	}
	return path, f.Close()
}
