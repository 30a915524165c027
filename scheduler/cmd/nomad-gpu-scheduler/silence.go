// SPDX-License-Identifier: MPL-2.0

package main

import (
	"time"

	"github.com/hashicorp/go-hclog"
)

// sayAgain is how often a silence that lasts is logged.
const sayAgain = time.Minute

// silence logs that Nomad cannot be heard: when it begins, every minute that it
// lasts, and when it is over.
type silence struct {
	logger      hclog.Logger
	since, said time.Time // zero while Nomad is heard
}

func (s *silence) lasts(err error) {
	now := time.Now()
	if s.since.IsZero() {
		s.since = now
	}
	if now.Sub(s.said) >= sayAgain {
		s.said = now
		s.logger.Warn("cannot hear Nomad", "for", now.Sub(s.since).Round(time.Second), "error", err)
	}
}

func (s *silence) end() {
	if !s.since.IsZero() {
		s.logger.Info("hears Nomad again", "after", time.Since(s.since).Round(time.Second))
	}
	s.since, s.said = time.Time{}, time.Time{}
}
