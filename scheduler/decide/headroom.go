// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// waitsForHeadroom is the hold of a group that would take one of the last places for large
// tasks, and can wait a few minutes for other room.
func waitsForHeadroom(room place.Headroom, until time.Time) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForHeadroom, Sentence: fmt.Sprintf(
		"jobs for %d GPUs of a node come often, and %s left; it starts as soon as there is other room, and from %s on anywhere",
		room.GPUs, placesLeft(room.Places), until.UTC().Format(time.RFC3339))}
}

func placesLeft(n int64) string {
	switch n {
	case 0:
		return "no place for one is"
	case 1:
		return "1 place for one is"
	}
	return fmt.Sprintf("%d places for one are", n)
}
