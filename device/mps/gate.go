// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// A daemon's own socket lets who reaches it do too much: change limits, terminate
// other programs, shut the server down, and hold up all others by silence. So tasks
// get a gate's in its place. The gate learns what a program is and hands on CUDA
// programs, with nothing but their credentials; the daemon's answer is a descriptor
// that leads to the server, and from then on the gate has no part in it.
//
// A gate is a process of its own, since tasks start programs also while the plugin
// is away. It outlives the daemon too: where that is gone, CUDA fails, instead of
// finding no socket and going on without limits.

// GateCommand is the first argument with which the plugin's binary runs itself as
// a gate; its main must then call RunGate.
const GateCommand = "mps-gate"

// knowsPlaces is the last argument of gates that place programs in namespaces, which those
// of earlier releases do not.
const knowsPlaces = "places"

// RunGate serves a gate until the process ends. args are the directory that tasks
// see and the daemon's own; after "detach" it starts such a gate and returns.
func RunGate(args []string) error {
	if len(args) > 0 && args[0] == detach {
		return detachGate(args[1:])
	}
	if len(args) < 2 {
		return fmt.Errorf("%s: want two directories, got %q", GateCommand, args)
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "mps-gate", Output: os.Stderr})
	at := gatePlace{shown: args[0], kept: keptBeside(args[1])}
	logs, err := at.openLogPipe()
	if err != nil {
		return err
	}
	go drop(logs)
	listener, err := at.openGate()
	if err != nil {
		return err
	}
	go at.keep(context.Background(), log)
	if err := os.Stdin.Close(); err != nil { // the lock, see lockGate
		return err
	}
	return newGate(log, filepath.Join(args[1], controlSocket)).serve(context.Background(), listener)
}

const (
	controlSocket = "control"
	logPipe       = "log"
)

// queue is how many connections may wait for the gate to take them, of all tasks: a task
// that connects in vain again and again fills it, and the programs of others come behind
// all that is in it. A program that finds it full waits, as libcuda does, for its turn.
const queue = 8

func limitQueue(listener *net.UnixListener) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	var problem error
	err = raw.Control(func(fd uintptr) { problem = unix.Listen(int(fd), queue) })
	return errors.Join(err, problem)
}

func drop(logs *os.File) { _, _ = io.Copy(io.Discard, logs) }

// gate hands CUDA programs on to a daemon.
type gate struct {
	log hclog.Logger
	// daemon is the path of the daemon's own socket.
	daemon string
	// placing is how long a program waits for its namespace: the plugin may be starting again,
	// and makes those of all tasks one after the other.
	placing time.Duration
	// introduction is how long a program may take to introduce itself, and status how
	// long the daemon waits for the status of a program that it gave to its server.
	introduction, status time.Duration
	peers                *peers
}

func newGate(log hclog.Logger, daemon string) *gate {
	return &gate{log: log, daemon: daemon, placing: time.Minute, introduction: 10 * time.Second, status: time.Second, peers: newPeers(time.Now)}
}

func (g *gate) serve(ctx context.Context, listener *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			g.log.Warn("cannot take a connection", "error", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, say: others close theirs
			continue
		}
		if hungUp(conn) {
			conn.Close() // before anything is done for it
			continue
		}
		go g.handle(ctx, mpswire.Conn{UnixConn: conn})
	}
}

// hungUp reports whether the program at the other end has closed the connection.
func hungUp(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	var events int16
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(poll, 0); err == nil {
			events = poll[0].Revents
		}
	})
	return err != nil || events&unix.POLLHUP != 0
}

// handle serves one connection.
func (g *gate) handle(ctx context.Context, client mpswire.Conn) {
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	peer, err := peerOf(client)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return // it has ended
	}
	var leave func()
	if err == nil {
		leave, err = g.peers.enter(peer)
	}
	if err == nil {
		err = g.admit(client, peer)
		leave()
	}
	if err != nil && g.peers.mayComplain(peer) {
		g.log.Warn("a connection is refused", "pid", peer.Pid, "user", peer.Uid, "control_group", peer.group, "error", err)
	}
}

// admit learns what a program is, and hands it on if it is a CUDA program.
func (g *gate) admit(client mpswire.Conn, p peer) error {
	if err := client.SetDeadline(time.Now().Add(g.introduction)); err != nil {
		return err
	}
	if _, err := client.Greet(); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			return nil // CUDA looks first whether there is a daemon
		}
		return fmt.Errorf("it did not introduce itself: %w", err)
	}
	kind, err := client.Receive()
	if err != nil {
		return fmt.Errorf("it did not say what it is: %w", err)
	}
	if got, ok := mpswire.ParseKind(kind); !ok || got != mpswire.KindClient {
		return fmt.Errorf("it says that it is %s, and CUDA programs alone pass", got)
	}
	if err := client.SetDeadline(time.Time{}); err != nil {
		return err
	}
	socket, done, err := g.socketOf(client, p)
	if err != nil {
		return err
	}
	daemon, err := mpswire.Dial(socket)
	done()
	if err != nil {
		return fmt.Errorf("reach the daemon: %w", err)
	}
	defer daemon.Close()
	return g.handOn(client, daemon, p)
}

// handOn introduces a program to the daemon, gives it the daemon's answer, and the
// daemon the program's.
func (g *gate) handOn(client, daemon mpswire.Conn, p peer) error {
	if err := daemon.ExpectHello(); err != nil {
		return fmt.Errorf("reach the daemon: %w", err)
	}
	if err := g.peers.checkUser(p, daemon); err != nil {
		return err
	}
	if err := daemon.Introduce(p.Ucred, mpswire.KindClient); err != nil {
		return err
	}
	// The daemon answers when it has a server for this program, and not before. A
	// program that ends meanwhile is not waited for.
	var answered atomic.Bool
	status := make(chan []byte, 1)
	go func() {
		packet, _ := client.Receive()
		if !answered.Load() {
			daemon.Close()
		}
		status <- packet
	}()
	server, err := daemon.ReceiveFile()
	answered.Store(true)
	if err != nil {
		return fmt.Errorf("the daemon has no server for it: %w", err)
	}
	g.peers.admitted(p)
	err = client.SendFile(server)
	_ = unix.Close(server)
	if err != nil {
		return fmt.Errorf("hand the server on: %w", err)
	}
	select {
	case packet := <-status:
		if len(packet) == 4 {
			_, _ = daemon.Write(packet) // the daemon goes on either way
		}
	case <-g.peers.patience(p, g.status):
		g.peers.silent(p)
		daemon.Close()
		<-status // CUDA ends by SIGPIPE when its status is not heard
	}
	return nil
}
