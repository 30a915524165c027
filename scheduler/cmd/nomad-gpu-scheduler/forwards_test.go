// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

// TestReservationsLeaveConnectionsAtTheLeader: where a client may have any number of
// connections, so may they.
func TestReservationsLeaveConnectionsAtTheLeader(t *testing.T) {
	for bound, want := range map[int]int{0: 0, 1: 1, 512: 128} {
		if got := forwards(&config.Listen{MaxConnectionsPerClient: bound}, nil).MaxConnsPerHost; got != want {
			t.Errorf("of %d connections they may have %d, want %d", bound, got, want)
		}
	}
}
