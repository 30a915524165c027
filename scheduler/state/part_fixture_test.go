// SPDX-License-Identifier: MPL-2.0

package state

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// noon is what time it is in tests of single parts.
var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

func atNoon() time.Time { return noon }

var oneJob = nomad.JobKey{Namespace: "default", ID: "one"}

// emptyReader is the parts of a state that knows nothing, at noon.
func emptyReader() Reader { return newReader(&settings{config.Default()}, atNoon) }

// promised is a promise to a group of oneJob on a node.
func promised(id, group, node string, ago time.Duration) *Assumed {
	return &Assumed{Job: oneJob, Group: group, Usage: place.Usage{ID: id, NodeID: node}, Since: noon.Add(-ago)}
}
