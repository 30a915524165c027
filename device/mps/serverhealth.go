// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// serverHealth keeps observations of a daemon's servers.
type serverHealth struct {
	// served is the process ID of the last server that took clients, latest the length of
	// server.log when that was seen, and quiet the length when it was seen before: a server
	// names the client that caused a fault a moment before it is in FAULT.
	served        int
	quiet, latest int64
	// starting is a server that initializes, and since the moment at which it was first
	// seen to.
	starting int
	since    time.Time
}

// maxInitializing is how long a server may initialize before that is a fault. On large
// machines without the persistence daemon it takes many seconds.
const maxInitializing = time.Minute

var (
	errServerEnded  = &serverError{reason: "its server has ended"}
	errInitializing = &serverError{reason: "its server has been initializing for more than a minute"}
)

// judge looks at a server, and tells one that cannot start from one that a program has
// brought into FAULT. The daemon lists the former in FAULT too, until it has ended; the
// latter has served before, or lives on.
func (l legacy) judge(ctx context.Context, server int, look func(quiet int64) error) error {
	latest, served := l.dirs.size(serverLog), l.health.served == server
	err := look(l.health.quiet)
	var not *serverError
	switch {
	case err == nil:
		*l.health = serverHealth{served: server, quiet: l.health.latest, latest: latest}
	case errors.Is(err, mpsctl.ErrNoServer) && served:
		return errServerEnded
	case errors.Is(err, mpsctl.ErrNoServer):
		l.awaitEnd(ctx, server) // it may be about to say why
		return l.notStarted(server)
	case !errors.As(err, &not):
	case not.state == ServerFault && !served && l.awaitEnd(ctx, server):
		return l.notStarted(server)
	case not.state == ServerInitializing && l.health.starting != server:
		l.health.starting, l.health.since = server, l.now()
	case not.state == ServerInitializing && l.now().Sub(l.health.since) > maxInitializing:
		return errInitializing
	}
	return err
}
