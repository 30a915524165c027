// Package agentlog lets a plugin outlive the Nomad agent that started it.
//
// A plugin logs to its standard error, a pipe that the agent reads. When the
// agent is killed, the next line would end the plugin with SIGPIPE: at any
// moment, also while the next agent, which finds the plugin by its process ID,
// restores its tasks. Nomad then takes such a task for failed and gives its GPU
// away, although its container runs on.
package agentlog

import (
	"errors"
	"io"
	"log/syslog"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
)

// Outlive makes the calling plugin survive its agent. What it logs afterwards,
// through loggers that are made from now on, goes to the machine's system log
// under the plugin's name, since the next agent does not read it.
func Outlive(plugin string) {
	// Not signal.Ignore: the programs that the plugin starts would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hclog.DefaultOutput = &writer{agent: os.Stderr, orphaned: func() (io.Writer, error) {
		return syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, plugin)
	}}
}

// writer writes to the agent while that reads. A logger calls it one line at a
// time.
type writer struct {
	agent io.Writer
	// orphaned opens the log that serves without an agent; system is that log.
	orphaned func() (io.Writer, error)
	system   io.Writer
}

func (w *writer) Write(line []byte) (int, error) {
	if w.system == nil {
		n, err := w.agent.Write(line)
		if !errors.Is(err, syscall.EPIPE) {
			return n, err
		}
		if w.system, err = w.orphaned(); err != nil {
			w.system = io.Discard // a machine without a system log
		}
	}
	return w.system.Write(line)
}
