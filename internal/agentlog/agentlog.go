// SPDX-License-Identifier: MPL-2.0

// Package agentlog lets a plugin outlive the Nomad agent that started it.
//
// A plugin logs to its standard error, a pipe that the agent reads. When the
// agent is killed, the next line would end the plugin with SIGPIPE: at any
// moment, also while the next agent, which finds the plugin by its process ID,
// restores its tasks. Nomad then takes such a task for failed and gives its GPU
// away, although its container runs on.
package agentlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Outlive makes the calling plugin survive its agent. Its later log,
// of loggers that are made from now on, goes to the machine's system log
// under the plugin's name, since the next agent does not read it: there as text,
// and from level info on, which the agent would have seen to.
func Outlive(plugin string) {
	// Not signal.Ignore: the programs that the plugin starts would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hclog.DefaultOutput = &writer{agent: os.Stderr, orphaned: func() (systemLog, error) {
		return syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, plugin)
	}}
}

// EndUnused ends the calling plugin when its agent ends before it has written down the
// plugin's process: no later agent would find the plugin. The agent may have ended before this
// process looked for the first time, and its number may be 1, so its end of the log tells too.
func EndUnused(used func() bool) {
	agent := os.Getppid()
	go func() {
		for range time.Tick(time.Second) {
			switch {
			case used():
				return
			case os.Getppid() != agent || unread(syscall.Stderr):
				os.Exit(0)
			}
		}
	}()
}

// unread reports whether a descriptor is a pipe's that no process can read from any more. It is
// the process's own standard error that counts: os.Stderr is another pipe while a plugin serves.
func unread(fd int) bool {
	look := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(look, 0)
	return err == nil && n == 1 && look[0].Revents&unix.POLLERR != 0
}

// systemLog takes a line by its importance, as syslog.Writer does.
type systemLog interface {
	Info(line string) error
	Warning(line string) error
	Err(line string) error
}

// writer writes to the agent while that reads. A logger calls it one line at a
// time.
type writer struct {
	agent io.Writer
	// orphaned opens the log that serves without an agent; system is that log.
	orphaned func() (systemLog, error)
	system   systemLog
}

func (w *writer) Write(line []byte) (int, error) {
	if w.system == nil {
		n, err := w.agent.Write(line)
		if !errors.Is(err, syscall.EPIPE) {
			return n, err
		}
		if w.system, err = w.orphaned(); err != nil {
			w.system = nowhere{} // a machine without a system log
		}
	}
	level, text := readable(line)
	var err error
	switch {
	case level >= hclog.Error:
		err = w.system.Err(text)
	case level == hclog.Warn:
		err = w.system.Warning(text)
	case level == hclog.Info || level == hclog.NoLevel:
		err = w.system.Info(text)
	}
	return len(line), err
}

// readable turns a line that is meant for an agent, JSON of every level, into text that
// a person reads. Other lines stay as they are.
func readable(line []byte) (hclog.Level, string) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return hclog.NoLevel, string(line)
	}
	take := func(key string) string {
		value, _ := fields[key].(string)
		delete(fields, key)
		return value
	}
	level, message, module := hclog.LevelFromString(take("@level")), take("@message"), take("@module")
	delete(fields, "@timestamp") // the system log has its own
	var text strings.Builder
	if module != "" {
		text.WriteString(module + ": ")
	}
	text.WriteString(message)
	separator := ": "
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value := fmt.Sprint(fields[key])
		if strings.ContainsAny(value, " \t\n\"") {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&text, "%s%s=%s", separator, key, value)
		separator = " "
	}
	return level, text.String()
}

// nowhere drops every line.
type nowhere struct{}

func (nowhere) Info(string) error    { return nil }
func (nowhere) Warning(string) error { return nil }
func (nowhere) Err(string) error     { return nil }
