// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// A daemon without a server takes the first client and then makes it wait, or
// fail, while the server starts. So the server is started before anything is
// offered, and it is the server that says whether clients can come.

// serverPoll is how often to look for a server that is being started.
const serverPoll = 100 * time.Millisecond

// serverError means that the server does not take clients, and that the daemon is
// not to blame.
type serverError struct {
	state  ServerState
	reason string
	// culprit is the client that caused a FAULT, 0 where it is not known.
	culprit int
}

func (e *serverError) Error() string { return e.reason }

// server returns the daemon's server, started where there is none.
func (c control) server(ctx context.Context) (int, error) {
	servers, err := c.Servers(ctx)
	if err != nil {
		return 0, err
	}
	if len(servers) > 0 {
		return servers[len(servers)-1], nil
	}
	before := c.dirs.size(controlLog)
	if _, err := c.Ask(ctx, "start_server -uid 0"); err != nil {
		return 0, err
	}
	return c.awaitServer(ctx, before)
}

// awaitServer waits for a server that was told to start. One that cannot may have ended
// before it is listed: the daemon's log, from an offset on, says so.
func (c control) awaitServer(ctx context.Context, before int64) (int, error) {
	limit := time.After(c.Timeout)
	for {
		ended := c.dirs.lastMatch(controlLog, before, exited)
		servers, err := c.Servers(ctx)
		switch {
		case err != nil:
			return 0, err
		case len(servers) > 0:
			return servers[len(servers)-1], nil
		case ended != nil:
			pid, err := strconv.Atoi(ended[1])
			if err != nil {
				return 0, fmt.Errorf("%s: %q names no process: %w", controlLog, ended[0], err)
			}
			return 0, c.notStarted(pid)
		}
		select {
		case <-time.After(serverPoll):
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-limit:
			return 0, &serverError{reason: "its server does not start: the control daemon lists none"}
		}
	}
}

// notStarted is the error of a server that has ended before it could take clients.
func (c control) notStarted(server int) error {
	return &serverError{reason: "its server does not start: " + c.dirs.whyNotStarted(server)}
}

// awaitEnd waits for a process to end, which a server that cannot start does at once.
func (c control) awaitEnd(ctx context.Context, pid int) bool {
	limit := time.After(c.Timeout)
	for {
		if _, err := procs.Find(pid); err != nil {
			return true
		}
		select {
		case <-time.After(serverPoll):
		case <-ctx.Done():
			return false
		case <-limit:
			return false
		}
	}
}

// state asks a server for its state. Branches before 550 do not tell: there, a
// server that answers at all is active.
func (c control) state(ctx context.Context, pid int) (ServerState, error) {
	answer, err := c.Value(ctx, fmt.Sprintf("get_server_status %d", pid))
	if errors.Is(err, mpsctl.ErrUnknown) {
		answer, err = c.Value(ctx, serverLimits(pid).getPercent)
		if err == nil && answer == "" {
			return ServerInitializing, nil
		}
		return ServerActive, err
	}
	if err != nil {
		return "", err
	}
	switch s := ServerState(mpsctl.FirstLine(answer)); s {
	case ServerInitializing, ServerActive, ServerFault:
		return s, nil
	default:
		return "", fmt.Errorf("state of MPS server %d: answer %q is not valid (INITIALIZING, ACTIVE or FAULT)", pid, mpsctl.FirstLine(answer))
	}
}

// stateQuestion asks a server for its state.
type stateQuestion func(ctx context.Context, server int) (ServerState, error)

// takesClients returns an error unless the server takes clients. What server.log held
// before an offset was there when the server last did.
func (c control) takesClients(ctx context.Context, pid int, quiet int64, ask stateQuestion) error {
	state, err := ask(ctx, pid)
	switch {
	case err != nil:
		return err
	case state == ServerInitializing:
		return &serverError{state: state, reason: "its server is initializing"}
	case state == ServerFault:
		reason := "a client had a fatal GPU error: its server takes no new ones until all that were there have ended"
		culprit, words := c.dirs.fault(quiet)
		if words != "" {
			reason += " (" + serverLog + ": " + words + ")"
		}
		return &serverError{state, reason, culprit}
	}
	return nil
}

// awaitClients is takesClients for a server that may have started a moment ago: that
// it initializes is no fault yet.
func (c control) awaitClients(ctx context.Context, pid int, quiet int64, ask stateQuestion) error {
	limit := time.After(c.Timeout)
	for {
		err := c.takesClients(ctx, pid, quiet, ask)
		var server *serverError
		if !errors.As(err, &server) || server.state != ServerInitializing {
			return err
		}
		select {
		case <-time.After(serverPoll):
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return err
		}
	}
}

// multiUserServer reports whether a server was started for all users. The option
// of the daemon is no proof that it was understood.
func multiUserServer(pid int) bool {
	return slices.ContainsFunc(arguments(pid), func(arg string) bool { return slices.Contains(multiUserFlags, arg) })
}
