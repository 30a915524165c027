// SPDX-License-Identifier: MPL-2.0

package state

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// What Nomad has registered is the truth; a record is what the service wrote
// last. They come apart when a job is reverted, by its owner or by a failed
// deployment, or edited around the service, when a Variable is lost, and for the
// children of periodic and parameterized jobs, which have no record of their own.

// AsRecorded reports whether a group is registered as it was recorded.
func AsRecorded(r *record.Record, g *nomad.Group) bool {
	if r == nil {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.Fingerprint == g.Registered && g.Count <= known.Ask.Count // more were not decided about
}

// Shrunk reports whether a group is registered with fewer allocs than were recorded: it was
// scaled down around the service, and its allocs beyond that are not admitted any more.
func Shrunk(r *record.Record, g *nomad.Group) bool {
	if r == nil {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.Fingerprint == g.Registered && g.Count < known.Ask.Count && (known.Ask.JobType == "service" || known.Ask.JobType == "batch")
}

// inherited reports whether a child's group is as it was recorded of its parent.
func inherited(r *record.Record, g *nomad.Group) bool {
	if r == nil || g.Inherited == "" {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.Fingerprint == g.Inherited
}
