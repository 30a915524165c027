// SPDX-License-Identifier: MPL-2.0

// Package mpsctl speaks to a CUDA MPS control daemon through NVIDIA's own
// control program, one question at a time. The device plugin keeps daemons with
// it, and the task driver ends clients with it.
//
// Driver branches differ in the commands that their daemons know. The program
// exits with 0 whatever the daemon thinks of a command, so what counts is the
// answer: ErrUnknown says that the branch lacks the command.
package mpsctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrTimeout means that the control program did not come back in time: the
	// daemon is slow or hangs, which an answer alone can tell apart.
	ErrTimeout = errors.New("no answer in time")
	// ErrUnknown means that this branch of the driver lacks the command.
	ErrUnknown = errors.New("this driver's MPS does not know the command")
	// ErrRefused means that the daemon takes the command from the privileged
	// socket only.
	ErrRefused = errors.New("insufficient privileges")
	// ErrNoServer means that the server which a command names has ended.
	ErrNoServer = errors.New("the MPS server has ended")
)

// Control is a daemon, by its pipe directory, and the program to ask it with.
type Control struct {
	// Program is NVIDIA's nvidia-cuda-mps-control, by path or by name.
	Program string
	// PipeDir is the daemon's.
	PipeDir string
	// Env is what the program gets besides the pipe directory.
	Env []string
	// Timeout is how long one question may take.
	Timeout time.Duration
}

// Ask sends one command and returns the answer without the final line break.
func (c Control) Ask(ctx context.Context, command string) (string, error) {
	answer, err := c.ask(ctx, command)
	if err != nil {
		return "", fmt.Errorf("ask MPS control daemon %q: %w", command, err)
	}
	return answer, nil
}

// Value is Ask for a command that rarely has an empty answer: it is asked again
// then, because a daemon to which a client connects meanwhile can lose an answer.
func (c Control) Value(ctx context.Context, command string) (string, error) {
	for range maxCollisions {
		if answer, err := c.Ask(ctx, command); err != nil || answer != "" {
			return answer, err
		}
	}
	return "", nil
}

func (c Control) ask(ctx context.Context, command string) (string, error) {
	lock, err := c.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	for range maxCollisions {
		var answer string
		answer, err = c.Run(ctx, c.Program, nil, command+"\n", &syscall.SysProcAttr{Setsid: true})
		answer = strings.TrimSpace(answer)
		switch {
		case collided(err):
			continue
		case err != nil:
			return "", err
		case strings.HasPrefix(answer, "Unknown command"):
			return "", ErrUnknown
		case strings.HasPrefix(answer, "Insufficient privileges"), strings.HasPrefix(answer, "Not enough privilege"):
			return "", ErrRefused
		case noServer.MatchString(answer):
			return "", ErrNoServer
		}
		return answer, nil
	}
	return "", err
}

// noServer is the answer to a command about a server that there is not.
var noServer = regexp.MustCompile(`^Server [0-9]+ not found`)

// maxCollisions is how often a question is asked that got lost. Daemons answer
// one at a time: where three processes asked as fast as they could, one question
// in ten was dropped and half of the answers were empty.
const maxCollisions = 3

// collided reports whether the daemon was there and dropped the connection.
func collided(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 1 && !strings.Contains(err.Error(), "Cannot find")
}

// lock keeps other questions of ours away from the daemon until it is closed. The
// file lies beside the pipe directory, where tasks do not reach it.
func (c Control) lock(ctx context.Context) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(filepath.Dir(c.PipeDir), "ask.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock MPS control daemon: %w", err)
	}
	limit := time.After(c.Timeout)
	for {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-limit:
			file.Close()
			return nil, fmt.Errorf("another question to the MPS control daemon does not end: %w", ErrTimeout)
		}
	}
}

// lockPoll is how often to try for the lock.
const lockPoll = 5 * time.Millisecond

// Run runs a program in the daemon's environment. Nothing of this process's own
// environment that could name another daemon is passed on.
func (c Control) Run(parent context.Context, program string, args []string, stdin string, attr *syscall.SysProcAttr) (string, error) {
	ctx, cancel := context.WithTimeout(parent, c.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "CUDA_MPS_PIPE_DIRECTORY=" + c.PipeDir}, c.Env...)
	cmd.Dir, cmd.SysProcAttr = "/", attr
	cmd.Stdin = strings.NewReader(stdin)
	// A daemon inherits the pipes; without a limit Wait would wait for it.
	cmd.WaitDelay = time.Second
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	switch {
	case parent.Err() != nil:
		return "", parent.Err() // it was not given its time
	case ctx.Err() != nil:
		return "", ErrTimeout
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case err != nil && problem.Len() > 0:
		err = fmt.Errorf("%w: %s", err, FirstLine(problem.String()))
	}
	return out.String(), err
}

// Servers lists the process IDs of the daemon's servers.
func (c Control) Servers(ctx context.Context) ([]int, error) {
	return c.processes(ctx, "get_server_list")
}

// Clients lists the process IDs of a server's clients, in the PID namespace of
// the daemon.
func (c Control) Clients(ctx context.Context, server int) ([]int, error) {
	return c.processes(ctx, fmt.Sprintf("get_client_list %d", server))
}

func (c Control) processes(ctx context.Context, command string) ([]int, error) {
	answer, err := c.Value(ctx, command)
	if err != nil {
		return nil, err
	}
	var all []int
	for line := range strings.Lines(answer) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 1 {
			return nil, fmt.Errorf("ask MPS control daemon %q: answer %q is not a process ID", command, FirstLine(line))
		}
		all = append(all, pid)
	}
	return all, nil
}

// Terminate ends the GPU work of one client without harm to the others. The
// process itself lives on, and its CUDA calls fail.
func (c Control) Terminate(ctx context.Context, server, client int) error {
	command := fmt.Sprintf("terminate_client %d %d", server, client)
	answer, err := c.Ask(ctx, command)
	if err != nil {
		return err
	}
	if answer != "" && answer != "0" {
		return fmt.Errorf("ask MPS control daemon %q: %s", command, FirstLine(answer))
	}
	return nil
}

// FirstLine returns the first line of a text without space around it.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
