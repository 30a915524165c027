// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
)

const (
	// patience is how long to try while the driver is being restarted, tryAgain the pause
	// between two attempts, and answerTime how long one answer may take.
	patience   = 15 * time.Second
	tryAgain   = 200 * time.Millisecond
	answerTime = 60 * time.Second
)

// ask sends a request and returns the answer. What the driver refuses is an error.
func ask(r gpu.SelfRequest) (gpu.SelfAnswer, error) {
	conn, err := dial(socketPath())
	if err != nil {
		return gpu.SelfAnswer{}, err
	}
	return exchange(conn, r)
}

// exchange sends a request, reads its answer, and closes the connection.
func exchange(conn net.Conn, r gpu.SelfRequest) (gpu.SelfAnswer, error) {
	defer conn.Close()
	var a gpu.SelfAnswer
	r.Version = gpu.SelfVersion
	text, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	// A driver that refuses whoever asks has answered before it reads.
	if _, err := conn.Write(append(text, '\n')); err != nil && !errors.Is(err, unix.EPIPE) {
		return a, fmt.Errorf("ask the driver: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, gpu.MaxSelfAnswer)).ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("read the driver's answer: %w", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("read the driver's answer: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func socketPath() string {
	if path := os.Getenv(gpu.EnvSelfSocket); path != "" {
		return path
	}
	return gpu.SelfSocket
}

// dial connects to the driver, also to one that is just being restarted.
func dial(path string) (net.Conn, error) {
	for began := time.Now(); ; {
		conn, err := net.DialTimeout("unix", path, answerTime)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, unix.ENOENT):
			return nil, fmt.Errorf("%s is not there: the task has no GPU of this driver's, or mounts something in the place of the socket", path)
		case !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("reach the driver: %w", err)
		case time.Since(began) > patience:
			return nil, fmt.Errorf("reach the driver: %w: Nomad's client or the driver is not running on this node", err)
		}
		time.Sleep(tryAgain)
	}
}

// plain is a command that only asks for something.
func plain(action gpu.SelfAction, usage, help string) func([]string, io.Writer, io.Writer) int {
	return func(args []string, stdout, stderr io.Writer) int {
		fs := command.NewFlags(name, usage, help, stderr)
		asJSON := fs.Bool("json", false, "print JSON")
		if code, done := command.ParseFlags(fs, args, stdout); done {
			return code
		}
		return finish(gpu.SelfRequest{Action: action}, *asJSON, stdout, stderr)
	}
}

// finish asks, and prints the answer.
func finish(r gpu.SelfRequest, asJSON bool, stdout, stderr io.Writer) int {
	a, err := ask(r)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	if asJSON {
		err = terminal.JSON(stdout, a)
	} else {
		err = show(stdout, a, time.Now())
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	return command.ExitOK
}
