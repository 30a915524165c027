// SPDX-License-Identifier: MPL-2.0

package self

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Bounds of what one task may cost.
const (
	// atOnce is how many connections of a task are open at a time, perSecond how many are
	// accepted, and burst how many of those at once after a pause.
	atOnce    = 4
	perSecond = 5
	burst     = 10
	// readTime and writeTime are how long a client may take to send a request and to take
	// the answer.
	readTime  = 2 * time.Second
	writeTime = 2 * time.Second
)

// Answerer answers the requests of one task. The process is the client's, as the kernel
// reports it: its number in the driver's PID namespace.
type Answerer interface {
	// Mine reports whether a process is the task's.
	Mine(pid int) error
	Answer(ctx context.Context, r gpu.SelfRequest) gpu.SelfAnswer
}

// Socket is the socket of one task.
type Socket struct {
	listener *net.UnixListener
	task     Answerer
}

// The name of the socket in its directory, and of one that is about to take its place.
const (
	socketName = "self.sock"
	nextName   = "self.next"
)

// Listen puts a socket into a directory, in the place of one that is there. The directory
// is held while it does: a path may be longer than the kernel takes for a socket's.
func Listen(dir string, task Answerer) (*Socket, error) {
	at, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	next := fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), nextName)
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: next, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // by then the name may be that of another
	if err := errors.Join(os.Chmod(next, 0o666), os.Rename(next, filepath.Join(filepath.Dir(next), socketName))); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &Socket{listener: listener, task: task}, nil
}

// Serve answers until ctx ends, and returns when all that it began has ended.
func (s *Socket) Serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()
	limit, places := rate.NewLimiter(perSecond, burst), make(chan struct{}, atOnce)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		// Before anything is accepted: what comes too fast waits in the kernel.
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if limit.Wait(ctx) != nil {
			return
		}
		conn, err := s.listener.AcceptUnix()
		if ctx.Err() != nil { // which closes the listener
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil { // the client was faster, or this process has no descriptors left
			<-places
			continue
		}
		open.Go(func() {
			defer func() { <-places }()
			s.serve(ctx, conn)
		})
	}
}

// serve answers one request and closes the connection.
func (s *Socket) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	answer := s.answer(ctx, conn)
	answer.Version = gpu.SelfVersion
	text, err := json.Marshal(answer)
	if err != nil || len(text) >= gpu.MaxSelfAnswer {
		text = fmt.Appendf(nil, `{"version":%d,"error":"the answer could not be written in %d bytes"}`, gpu.SelfVersion, gpu.MaxSelfAnswer)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(writeTime))
	_, _ = conn.Write(append(text, '\n')) // a client that is gone has no use for it
}

func (s *Socket) answer(ctx context.Context, conn *net.UnixConn) gpu.SelfAnswer {
	pid, err := peer(conn)
	if err == nil {
		err = s.task.Mine(pid)
	}
	if err != nil {
		return gpu.SelfAnswer{Error: err.Error()}
	}
	_ = conn.SetReadDeadline(time.Now().Add(readTime))
	line, err := readLine(conn)
	if err != nil {
		return gpu.SelfAnswer{Error: err.Error()}
	}
	r, err := gpu.ParseSelfRequest(line)
	if err != nil {
		return gpu.SelfAnswer{Error: err.Error()}
	}
	return s.task.Answer(ctx, r)
}

// readLine reads a request, and no more than one may have.
func readLine(conn *net.UnixConn) ([]byte, error) {
	line, err := bufio.NewReaderSize(conn, gpu.MaxSelfRequest).ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("request: its line is not valid (at most %d bytes, with a newline at its end)", gpu.MaxSelfRequest)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("request: no complete line came within %s", readTime)
	case err != nil:
		return nil, fmt.Errorf("request: no complete line came: %w", err)
	}
	return line, nil
}

// peer is the process that connected.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("ask the kernel who connected: %w", err)
	}
	return int(who.Pid), nil
}
