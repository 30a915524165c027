// SPDX-License-Identifier: MPL-2.0

package server

import "context"

// handing bounds how many submissions are with the replica that leads at once. There this
// replica is one client, whose connections above Limits.ConnectionsPerClient are closed as
// they arrive: that would look like a leader that is dead. Half of that leaves room for
// connections that are about to be closed, and for reservations. nil bounds nothing.
type handing chan struct{}

func newHanding(l *Limits) handing {
	if l.ConnectionsPerClient <= 0 {
		return nil
	}
	return make(handing, max(1, l.ConnectionsPerClient/2))
}

// take waits for a place, which leave gives back, and reports whether it had to wait.
func (h handing) take(ctx context.Context) (waited bool, err error) {
	if h == nil {
		return false, nil
	}
	select {
	case h <- struct{}{}:
		return false, nil
	default:
	}
	select {
	case h <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

func (h handing) leave() {
	if h != nil {
		<-h
	}
}
