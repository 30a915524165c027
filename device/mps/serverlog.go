package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// culprit matches lines of server.log that name the client which caused a fault.
var culprit = regexp.MustCompile(`(?i)client.*[0-9].*(fatal|exception|fault|error)|(fatal|exception|fault|error).*client.*[0-9]`)

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

const (
	controlLog = "control.log"
	serverLog  = "server.log"
)

// exited is the daemon's line about a server that has ended.
var exited = regexp.MustCompile(`Server ([0-9]+) exited with status (-?[0-9]+)`)

// whyNotStarted says why a server that has ended could not start: as the server logs it,
// "[2026-11-22 09:00:00.000 Other 77] Failed to start : no CUDA-capable device is
// detected", or as far as the daemon knows.
func (d dirs) whyNotStarted(server int) string {
	said := d.lastMatch(serverLog, 0, regexp.MustCompile(fmt.Sprintf(`(?i) %d\] .*failed to start\s*:\s*(.+)`, server)))
	if said != nil {
		return strings.TrimSpace(said[1])
	}
	said = d.lastMatch(controlLog, 0, regexp.MustCompile(fmt.Sprintf(`Server %d exited with status (-?[0-9]+)`, server)))
	if said != nil {
		return fmt.Sprintf("it exited with status %s and logged no reason", said[1])
	}
	return "it has ended and logged no reason"
}

// logTail is how much of a log is looked through, and kept when it is truncated.
const logTail = 64 << 10

// size is how long a log is, 0 for one that is not there.
func (d dirs) size(name string) int64 {
	info, err := os.Lstat(filepath.Join(d.log, name))
	if err != nil {
		return 0
	}
	return info.Size()
}

// lastLine returns the last line of a log, from an offset on, that matches, without its
// time.
func (d dirs) lastLine(name string, from int64, matches *regexp.Regexp) string {
	match := d.lastMatch(name, from, matches)
	if match == nil {
		return ""
	}
	line := match[len(match)-1]
	if _, after, found := strings.Cut(line, "] "); found && strings.HasPrefix(line, "[") {
		line = after
	}
	return strings.TrimSpace(line)
}

// lastMatch returns the match of the last line of a log that matches, its groups, and the
// line itself. A log that is shorter than the offset was truncated meanwhile.
func (d dirs) lastMatch(name string, from int64, matches *regexp.Regexp) []string {
	size := d.size(name)
	if from > size {
		from = 0
	}
	text, err := tail(filepath.Join(d.log, name), min(logTail, size-from))
	if err != nil {
		return nil
	}
	lines := strings.Split(string(text), "\n")
	for _, line := range slices.Backward(lines) {
		if match := matches.FindStringSubmatch(line); match != nil {
			return append(match, line)
		}
	}
	return nil
}

// gateLog is what a gate writes.
const gateLog = "gate.log"

// maxLog is how large a log may grow: it lies in memory.
const maxLog = 1 << 20

// boundLogs truncates logs that have grown too large and keeps their ends beside
// them. Daemons append, so they go on at the new end.
func (d dirs) boundLogs() error {
	var problems []error
	for _, name := range []string{controlLog, serverLog, gateLog} {
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
