// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// topic is a subject of notices to a task.
type topic = gpu.Notice

// notices remember what tasks were told of their GPUs, also for the next process of
// the driver: a client that restarts must not tell of a daemon's end again. They
// are empty until load was called.
type notices struct {
	told map[topic]bool
	// loaded is set once the file was read, unsaved while it lacks something.
	loaded, unsaved bool
}

// first notes that a topic comes up, and reports whether it does for the first time.
func (n *notices) first(about topic) bool {
	if n.told[about] {
		return false
	}
	if n.told == nil {
		n.told = map[topic]bool{}
	}
	n.told[about], n.unsaved = true, true
	return true
}

// forget lets a topic come up again, and reports whether it had been told.
func (n *notices) forget(about topic) bool {
	if !n.told[about] {
		return false
	}
	delete(n.told, about)
	n.unsaved = true
	return true
}

// matching returns the told topics, in a fixed order.
func (n *notices) matching(wanted func(topic) bool) []topic {
	var found []topic
	for about := range n.told {
		if wanted(about) {
			found = append(found, about)
		}
	}
	slices.SortFunc(found, func(a, b topic) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Code, b.Code))
	})
	return found
}

// load reads what an earlier process told, once.
func (n *notices) load(state *statedir.Dir) error {
	if n.loaded {
		return nil
	}
	n.loaded = true
	list, err := state.Notices()
	if errors.Is(err, statedir.ErrNotFound) {
		return nil
	}
	for _, about := range list.Told {
		n.first(about)
	}
	n.unsaved = false
	return err
}

func (n *notices) save(state *statedir.Dir) error {
	if !n.unsaved {
		return nil
	}
	n.unsaved = false
	return state.WriteNotices(gpu.Notices{Told: n.matching(func(topic) bool { return true })})
}

// forgetEnded drops the topics of tasks that have ended: those whose containers are
// not running. One that Nomad has not
// handed to this process yet still has its lease.
func (n *notices) forgetEnded(running []string, state *statedir.Dir) {
	live := map[string]bool{}
	for _, container := range running {
		live[container] = true
	}
	unknown := n.matching(func(about topic) bool { return !live[about.Container] })
	if len(unknown) == 0 {
		return
	}
	leases, _ := state.Leases() // one that cannot be read has nothing to be told
	for _, l := range leases {
		if l.Phase != gpu.PhaseEnded {
			live[l.Container] = true
		}
	}
	for _, about := range unknown {
		if !live[about.Container] {
			n.forget(about)
		}
	}
}
