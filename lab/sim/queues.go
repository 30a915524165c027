// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"io"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// ReadQueues reads the columns queue, parent, guarantee_milli, limit_milli.
func ReadQueues(r io.Reader) ([]place.Queue, error) {
	t, err := newTable(r, "queue", "parent", "guarantee_milli", "limit_milli")
	if err != nil {
		return nil, err
	}
	var out []place.Queue
	for t.next() {
		out = append(out, place.Queue{
			Name: t.text("queue"), Parent: t.text("parent"),
			GuaranteeMilli: t.number("guarantee_milli", maxAmount), LimitMilli: t.number("limit_milli", maxAmount),
		})
	}
	return out, t.err
}

// EvenQueues guarantees every queue that the tasks name the same part of the
// cluster.
func EvenQueues(nodes []Node, tasks []Task) []place.Queue {
	var out []place.Queue
	seen := map[string]bool{}
	for _, t := range tasks {
		if t.Queue != "" && !seen[t.Queue] {
			seen[t.Queue] = true
			out = append(out, place.Queue{Name: t.Queue})
		}
	}
	for i := range out {
		out[i].GuaranteeMilli = Capacity(nodes) / int64(len(out))
	}
	return out
}
