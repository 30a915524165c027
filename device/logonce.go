// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// onceLogger logs a failure that comes up again and again when it begins, when
// it changes and when it ends.
type onceLogger struct {
	log hclog.Logger

	mu   sync.Mutex
	said map[string]string // the latest error, by what fails
}

func newOnceLogger(log hclog.Logger) *onceLogger {
	return &onceLogger{log: log, said: map[string]string{}}
}

// report takes note of how something went this time; nil is well.
func (l *onceLogger) report(what string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said[what] == text {
		return
	}
	l.said[what] = text
	if text == "" {
		l.log.Info("recovered", "from", what)
		return
	}
	l.log.Error("cannot go on with this, trying again", "what", what, "error", text)
}
