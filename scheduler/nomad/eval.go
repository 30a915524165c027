// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// eventEval is the part of an evaluation that is used.
type eventEval struct {
	ID, Namespace, JobID, Status string
	QueuedAllocations            map[string]int
	FailedTGAllocs               map[string]*failedGroup
	CreateTime                   int64
	ModifyIndex                  uint64
}

// failedGroup is why Nomad does not place a group.
type failedGroup struct {
	CoalescedFailures                      int
	NodesEvaluated                         int
	ConstraintFiltered, DimensionExhausted map[string]int // nodes
}

func (e *eventEval) blocked(before *Blocked) *Blocked {
	b := &Blocked{
		Index: e.ModifyIndex, EvalID: e.ID, Key: JobKey{e.Namespace, e.JobID},
		Missing: map[string]int{}, Since: time.Unix(0, e.CreateTime), Why: map[string]string{}, ForDevices: map[string]bool{},
	}
	if before != nil {
		b.Since = before.Since
	}
	for group, failed := range e.FailedTGAllocs {
		n := 1
		if failed != nil {
			n += failed.CoalescedFailures
			b.Why[group] = failed.String()
			b.ForDevices[group] = failed.forDevices()
		}
		b.Missing[group] = max(n, e.QueuedAllocations[group])
	}
	return b
}

// Reasons of Nomad's that leave open whether it would start a group where there are devices: they name
// those, or what the service checks too. The class of a node stands for the reason that is named of
// another node of that class.
const (
	exhaustedDevices = "devices"
	missingDevices   = "missing devices"
	missingDrivers   = "missing drivers"
	classIneligible  = "computed class ineligible"
	ofConstraint     = "${" // as all begin that name a constraint of the job's
)

// forDevices reports whether devices are missing and nothing else is, that the service does not see.
func (f *failedGroup) forDevices() bool {
	found := f.ConstraintFiltered[missingDevices] > 0
	for reason := range f.ConstraintFiltered {
		known := reason == missingDevices || reason == missingDrivers || reason == classIneligible
		if !known && !strings.HasPrefix(reason, ofConstraint) && !strings.Contains(reason, admit.HoldMark) {
			return false
		}
	}
	for what := range f.DimensionExhausted {
		if !strings.HasPrefix(what, exhaustedDevices) {
			return false
		}
		found = true
	}
	return found
}

// mostReasons bounds how many of Nomad's reasons are kept of a group.
const mostReasons = 3

// String is the reasons for most nodes, as nomad job status has them. What the service
// holds a group with is none of Nomad's.
func (f *failedGroup) String() string {
	nodes := maps.Clone(f.ConstraintFiltered)
	maps.DeleteFunc(nodes, func(reason string, _ int) bool { return strings.Contains(reason, admit.HoldMark) })
	if nodes == nil {
		nodes = map[string]int{}
	}
	for what, n := range f.DimensionExhausted {
		nodes["exhausted "+what] += n
	}
	if len(nodes) == 0 && f.NodesEvaluated == 0 {
		return "no node is ready in the job's datacenters and node pool"
	}
	reasons := slices.SortedFunc(maps.Keys(nodes), func(x, y string) int {
		return cmp.Or(nodes[y]-nodes[x], strings.Compare(x, y))
	})
	var list []string
	for _, reason := range reasons[:min(mostReasons, len(reasons))] {
		list = append(list, fmt.Sprintf("%s on %d nodes", reason, nodes[reason]))
	}
	return strings.Join(list, ", ")
}
