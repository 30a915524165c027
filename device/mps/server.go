package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
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
	if len(servers) == 0 {
		if _, err := c.Ask(ctx, "start_server -uid 0"); err != nil {
			return 0, err
		}
		if servers, err = c.awaitServer(ctx); err != nil {
			return 0, err
		}
	}
	return servers[len(servers)-1], nil
}

func (c control) awaitServer(ctx context.Context) ([]int, error) {
	limit := time.After(c.Timeout)
	for {
		servers, err := c.Servers(ctx)
		if err != nil || len(servers) > 0 {
			return servers, err
		}
		select {
		case <-time.After(serverPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-limit:
			reason := "its server does not start"
			if line := c.dirs.lastLine("server.log", notice); line != "" {
				reason += ": " + line
			}
			return nil, &serverError{reason: reason}
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
		return "", &serverError{reason: fmt.Sprintf("server %d is gone: %s", pid, mpsctl.FirstLine(answer))}
	}
}

// takesClients returns an error unless the server takes clients.
func (c control) takesClients(ctx context.Context, pid int) error {
	state, err := c.state(ctx, pid)
	switch {
	case err != nil:
		return err
	case state == ServerInitializing:
		return &serverError{state: state, reason: "its server is initializing"}
	case state == ServerFault:
		reason := "a client had a fatal GPU error: its server takes no new ones until all that were there have ended"
		line := c.dirs.lastLine("server.log", culprit)
		if line != "" {
			reason += " (server.log: " + line + ")"
		}
		return &serverError{state, reason, processOf(line)}
	}
	return nil
}

// awaitClients is takesClients for a server that may have started a moment ago: that
// it initializes is no fault yet.
func (c control) awaitClients(ctx context.Context, pid int) error {
	limit := time.After(c.Timeout)
	for {
		err := c.takesClients(ctx, pid)
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

var (
	// culprit matches lines that name the client which caused a fault, notice
	// those that say why a server ended.
	culprit = regexp.MustCompile(`(?i)client.*[0-9].*(fatal|exception|fault|error)|(fatal|exception|fault|error).*client.*[0-9]`)
	notice  = regexp.MustCompile(`(?i)fail|error|fatal|exception|not supported|only supported|unable`)
)

// clientNumber is how a server's log names a client, by its process ID on the host:
// "Client process 4711", "Client 4711".
var clientNumber = regexp.MustCompile(`(?i)client[^0-9]*([0-9]+)`)

// processOf is the client that a line of the log tells of, 0 for none.
func processOf(line string) int {
	match := clientNumber.FindStringSubmatch(line)
	if match == nil {
		return 0
	}
	pid, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return pid
}

// logTail is how much of a log is looked through, and kept when it is truncated.
const logTail = 64 << 10

// lastLine returns the last line of a log that matches, without its time.
func (d dirs) lastLine(name string, matches *regexp.Regexp) string {
	text, err := tail(filepath.Join(d.log, name), logTail)
	if err != nil {
		return ""
	}
	lines := strings.Split(string(text), "\n")
	for _, line := range slices.Backward(lines) {
		if matches.MatchString(line) {
			if _, after, found := strings.Cut(line, "] "); found && strings.HasPrefix(line, "[") {
				line = after
			}
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// gateLog is what a gate writes.
const gateLog = "gate.log"

// maxLog is how large a log may grow: it lies in memory.
const maxLog = 1 << 20

// boundLogs truncates logs that have grown too large and keeps their ends beside
// them. Daemons append, so they go on at the new end.
func (d dirs) boundLogs() error {
	var problems []error
	for _, name := range []string{"control.log", "server.log", gateLog} {
		path := filepath.Join(d.log, name)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() <= maxLog {
			continue
		}
		text, err := tail(path, logTail)
		if err == nil {
			err = os.WriteFile(path+".1", text, 0o644)
		}
		problems = append(problems, err, os.Truncate(path, 0))
	}
	return errors.Join(problems...)
}

// tail reads the last bytes of a file.
func tail(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, min(most, info.Size()))
	n, err := file.ReadAt(text, info.Size()-int64(len(text)))
	if n == len(text) {
		err = nil
	}
	return text[:n], err
}
