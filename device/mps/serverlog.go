// SPDX-License-Identifier: MPL-2.0

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
	"time"
)

// Lines of server.log about a fatal GPU error, as branch 580 writes them on an H200:
//
//	[2026-11-27 03:22:38.858 Server   858] Server failed to recevie command with status 806, assuming client {PID: 3455, Context ID: 1} exit
//	[2026-11-27 03:22:38.858 Server   858] Client {PID: 3455, Context ID: 1} exiting. Number of active client contexts is 3.
//	[2026-11-27 03:22:38.993 Server   858] Client {PID: 2943, Context: 1} encountered a fatal GPU error.
//	[2026-11-27 03:22:38.993 Server   858] Client {PID: 2854, Context ID: 1} on the error-trigging process 2854 to be torn down
//
// The first client to report an error is the culprit if its own kernel failed. There, 3455
// was killed in the middle of a kernel, and 2943 is its victim. The last line names every
// client that is there.
var (
	reported = regexp.MustCompile(`(?i)client\b[^0-9]*([0-9]+).*\b(?:fatal|exception|fault)|\b(?:fatal|exception|fault)\b.*client\b[^0-9]*([0-9]+)`)
	exiting  = regexp.MustCompile(`(?i)client\b[^0-9]*([0-9]+).*\bexiting`)
	// renewed are lines after which an earlier error is over.
	renewed = regexp.MustCompile(`(?i)(?:destroy|creating) server context|server has started`)
	logTime = regexp.MustCompile(`^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) `)
)

// suspicious is how long before an error a client's end may have caused it.
const suspicious = time.Second

// lastFault returns the process that caused the last fatal GPU error in a log, from an
// offset on, and the log's words. The process is 0 where another one ended just before:
// then either may have caused it. The words are empty where the log has no such error.
func lastFault(text []byte, from int64) (pid int, words string) {
	var at int64
	var ended string
	var endedAt time.Time
	for line := range strings.Lines(string(text)) {
		at += int64(len(line))
		moment := momentOf(line)
		said := reported.FindStringSubmatch(line)
		switch {
		case renewed.MatchString(line):
			ended = ""
			if at > from && words != "" {
				pid, words = 0, ""
			}
		case said != nil && words == "" && at > from:
			words = withoutTime(line)
			if ended != "" && moment.Sub(endedAt) <= suspicious {
				pid, words = 0, fmt.Sprintf("client %s ended, perhaps in the middle of its GPU work; then: %s", ended, words)
				continue
			}
			if number, err := strconv.Atoi(said[1] + said[2]); err == nil {
				pid = number
			}
		case said == nil:
			if match := exiting.FindStringSubmatch(line); match != nil {
				ended, endedAt = match[1], moment
			}
		}
	}
	return pid, words
}

// momentOf is the time of a line, zero where it has none.
func momentOf(line string) time.Time {
	match := logTime.FindStringSubmatch(line)
	if match == nil {
		return time.Time{}
	}
	moment, _ := time.Parse("2006-01-02 15:04:05.000", match[1])
	return moment
}

func withoutTime(line string) string {
	if _, after, found := strings.Cut(line, "] "); found && strings.HasPrefix(line, "[") {
		line = after
	}
	return strings.TrimSpace(line)
}

// fault is the last fatal GPU error in the server's log, from an offset on.
func (d dirs) fault(from int64) (pid int, words string) {
	if from > d.size(serverLog) {
		from = 0 // the log was truncated meanwhile
	}
	text, err := tail(filepath.Join(d.log, serverLog), 2*maxLog)
	if err != nil {
		return 0, ""
	}
	return lastFault(text, from)
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
