// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// maxExecOutput is how much of each stream of a command is kept, where it is delivered
// as a whole: Nomad's script checks show a few lines of it.
const maxExecOutput = 1 << 20

// boundedBuffer keeps the first bytes that are written, and counts the rest.
type boundedBuffer struct {
	kept    bytes.Buffer
	dropped int64
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	room := min(len(p), maxExecOutput-b.kept.Len())
	b.kept.Write(p[:room])
	b.dropped += int64(len(p) - room)
	return len(p), nil
}

func (b *boundedBuffer) content() []byte {
	if b.dropped > 0 {
		return fmt.Appendf(b.kept.Bytes(), "\n[%d more bytes]\n", b.dropped)
	}
	return b.kept.Bytes()
}

// ExecTask runs a command in a task and returns the first bytes of its output.
func (d *Driver) ExecTask(taskID string, command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	leave, err := d.enterTask(t)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	defer cancel()
	var stdout, stderr boundedBuffer
	code, err := t.container.Exec(ctx, runtime.Exec{Command: command, Stdout: &stdout, Stderr: &stderr})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("%q had not ended after %s and was killed: %w", command, timeout, ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	return &drivers.ExecTaskResult{Stdout: stdout.content(), Stderr: stderr.content(), ExitResult: exitResult(runtime.Exit{Code: code}, nil)}, nil
}

// ExecTaskStreaming runs a command in a task for a caller who watches. When they
// leave, the command is killed.
func (d *Driver) ExecTaskStreaming(ctx context.Context, taskID string, options *drivers.ExecOptions) (*drivers.ExitResult, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	if t.exited() {
		return nil, fmt.Errorf("task %q has ended", taskID)
	}
	leave, err := d.enterTask(t)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Whoever feeds and reads the streams must not wait for a command that ended.
	defer options.Stdin.Close()
	defer options.Stdout.Close()
	defer options.Stderr.Close()
	code, err := t.container.Exec(ctx, runtime.Exec{
		Command: options.Command, Terminal: options.Tty,
		Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr,
		Resize: sizes(ctx, options.ResizeCh),
	})
	if err != nil {
		return nil, err
	}
	return exitResult(runtime.Exit{Code: code}, nil), nil
}

// enterTask counts one more command that runs in a task, until leave is called. Each
// has pipes on the host, and goroutines here and in the shim.
func (d *Driver) enterTask(t *task) (leave func(), err error) {
	n, err := d.configured()
	if err != nil {
		return nil, err
	}
	limit := n.settings.MaxExecSessions
	if running := t.sessions.Add(1); limit > 0 && running > limit {
		t.sessions.Add(-1)
		return nil, fmt.Errorf("task %q has %d commands running besides its own, and max_exec_sessions of this node's operator is %d: wait until one of them ends", t.cfg.Name, running-1, limit)
	}
	return func() { t.sessions.Add(-1) }, nil
}

// sizes translates Nomad's terminal sizes until ctx ends.
func sizes(ctx context.Context, in <-chan drivers.TerminalSize) <-chan runtime.Size {
	out := make(chan runtime.Size)
	go func() {
		defer close(out)
		for {
			select {
			case size, ok := <-in:
				if !ok {
					return
				}
				select {
				case out <- runtime.Size{Width: size.Width, Height: size.Height}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
