// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// Exec is a command to run in a container that runs already, with the
// environment, user and capabilities of its first process.
type Exec struct {
	Command  []string
	Terminal bool
	// Stdin may be nil.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers terminal sizes; nil for none.
	Resize <-chan Size
}

// execPrefix starts the IDs of exec sessions.
const execPrefix = "exec-"

// EndSessions kills and removes exec sessions that an earlier process left: who
// watched them has gone with it.
func (c *Container) EndSessions(ctx context.Context) error {
	task, ids, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		session, err := task.LoadProcess(ctx, id, nil)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("load exec in container %s: %w", c.ID, err)
		}
		if err := c.endSession(ctx, session); err != nil {
			return err
		}
	}
	return nil
}

// Sessions counts the exec sessions that run.
func (c *Container) Sessions(ctx context.Context) (int, error) {
	_, ids, err := c.sessions(ctx)
	return len(ids), err
}

func (c *Container) sessions(ctx context.Context) (client.Task, []string, error) {
	task, err := c.task(ctx)
	if err != nil {
		return nil, nil, err
	}
	processes, err := task.Pids(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list processes of container %s: %w", c.ID, notFound(err))
	}
	var ids []string
	for _, p := range processes {
		if p.Info == nil {
			continue
		}
		var details options.ProcessDetails
		if err := typeurl.UnmarshalTo(p.Info, &details); err != nil {
			return nil, nil, fmt.Errorf("list processes of container %s: %w", c.ID, err)
		}
		if strings.HasPrefix(details.ExecID, execPrefix) {
			ids = append(ids, details.ExecID)
		}
	}
	return task, ids, nil
}

// Size is a terminal's, in characters.
type Size struct{ Width, Height int }

// checkCwd refuses a working directory that the task has since replaced by a link to the
// kernel's files, where the runtime has descriptors that lead out of the container.
func checkCwd(pid uint32, cwd string) error {
	root, err := rooted.OpenHost(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.Resolve(strings.TrimPrefix(cwd, "/"))
	if err != nil {
		return fmt.Errorf("working directory %q: %w", cwd, err)
	}
	defer dir.Close()
	if dir.Kernels() {
		return fmt.Errorf("working directory %q is the kernel's by now", cwd)
	}
	return nil
}

// Exec runs a command and returns its exit code. When ctx ends, the command is
// killed and nothing of it stays.
func (c *Container) Exec(ctx context.Context, e Exec) (int, error) {
	if len(e.Command) == 0 {
		return 0, fmt.Errorf("exec in container %s: the command is empty", c.ID)
	}
	handle, err := c.handle(ctx)
	if err != nil {
		return 0, err
	}
	task, err := c.task(ctx)
	if err != nil {
		return 0, err
	}
	spec, err := handle.Spec(ctx)
	if err != nil {
		return 0, fmt.Errorf("read specification of container %s: %w", c.ID, err)
	}
	if err := checkCwd(task.Pid(), spec.Process.Cwd); err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	process := *spec.Process
	process.Args, process.Terminal = e.Command, e.Terminal

	var stdin *signalledReader
	streams := []cio.Opt{cio.WithFIFODir(c.runtime.config.FIFODir)}
	if e.Stdin == nil {
		streams = append(streams, cio.WithStreams(nil, e.Stdout, e.Stderr))
	} else {
		stdin = &signalledReader{reader: e.Stdin, ended: make(chan struct{})}
		streams = append(streams, cio.WithStreams(stdin, e.Stdout, e.Stderr))
	}
	if e.Terminal {
		streams = append(streams, cio.WithTerminal)
	}
	begin, cancel := beginning(ctx)
	defer cancel()
	session, err := task.Exec(begin, execPrefix+rand.Text(), &process, cio.NewCreator(streams...))
	if err != nil {
		return 0, fmt.Errorf("exec %q in container %s: %w", e.Command[0], c.ID, err)
	}
	return c.runSession(ctx, session, e, stdin)
}

// beginTimeout is how long a command may take to begin.
const beginTimeout = time.Minute

// beginning is the context in which a command begins. It goes on when the caller leaves:
// a runtime that is in the middle of it starts the command all the same, and one that
// has not begun cannot be killed.
func beginning(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), beginTimeout)
}

func (c *Container) runSession(ctx context.Context, session client.Process, e Exec, stdin *signalledReader) (code int, err error) {
	defer func() { err = errors.Join(err, c.endSession(ctx, session)) }()
	statuses, err := session.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("wait for exec in container %s: %w", c.ID, err)
	}
	begin, cancel := beginning(ctx)
	defer cancel()
	if err := session.Start(begin); err != nil {
		return 0, fmt.Errorf("exec %q in container %s: %w", e.Command[0], c.ID, err)
	}
	var stdinEnded chan struct{}
	if stdin != nil {
		stdinEnded = stdin.ended
	}
	resize := e.Resize
	for {
		select {
		case <-stdinEnded:
			stdinEnded = nil
			// A process that has ended meanwhile has no stdin to close.
			if err := session.CloseIO(ctx, client.WithStdinCloser); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
				return 0, fmt.Errorf("close stdin of exec in container %s: %w", c.ID, err)
			}
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			// Losing a resize is no reason to lose the session.
			_ = session.Resize(ctx, uint32(size.Width), uint32(size.Height))
		case status := <-statuses:
			code, _, err := status.Result()
			if ctx.Err() != nil && err != nil {
				return 0, ctx.Err() // the call that waited ended with its caller
			}
			if err != nil {
				return 0, fmt.Errorf("wait for exec in container %s: %w", c.ID, err)
			}
			awaitOutput(ctx, session)
			return int(code), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// drainTimeout is how long output is waited for that a process which ended has
// left: a child of it may keep the streams open.
const drainTimeout = 5 * time.Second

// awaitOutput waits until what a process wrote has been copied. To delete the
// process of a command that ended at once would close streams that no client has
// come to open yet.
func awaitOutput(ctx context.Context, session client.Process) {
	copied := make(chan struct{})
	go func() {
		session.IO().Wait()
		close(copied)
	}()
	select {
	case <-copied:
	case <-time.After(drainTimeout):
	case <-ctx.Done():
	}
}

// endSession removes the session; one that still runs is killed first. It
// returns after all output has been copied.
func (c *Container) endSession(ctx context.Context, session client.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	status, err := session.Status(ctx)
	if err == nil && status.Status == client.Running {
		statuses, err := session.Wait(ctx)
		if err != nil {
			return fmt.Errorf("end exec in container %s: %w", c.ID, err)
		}
		if err := session.Kill(ctx, syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("end exec in container %s: %w", c.ID, err)
		}
		select {
		case <-statuses:
		case <-ctx.Done():
			return fmt.Errorf("end exec in container %s: %w", c.ID, ctx.Err())
		}
	}
	if _, err := session.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("end exec in container %s: %w", c.ID, err)
	}
	return nil
}

// signalledReader tells when its reader has ended.
type signalledReader struct {
	reader io.Reader
	ended  chan struct{}
	done   bool
}

func (s *signalledReader) Read(p []byte) (int, error) {
	n, err := s.reader.Read(p)
	if err != nil && !s.done {
		s.done = true
		close(s.ended)
	}
	return n, err
}
