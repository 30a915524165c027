// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"maps"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

// CgroupMemory reads the control groups of processes, and knows them for a while
// after the processes ended: what a log tells of may be gone when it is read.
type CgroupMemory struct {
	read func(pid int) ([]cgroup.Group, error)
	now  func() time.Time

	mu     sync.Mutex
	seen   map[int]seenCgroups
	pruned time.Time
}

type seenCgroups struct {
	groups []cgroup.Group
	at     time.Time
}

// cgroupsKept is how long those of a process are known after they were last read.
const cgroupsKept = 5 * time.Minute

// NewCgroupMemory remembers the function to read processes with, such as cgroup.Of.
func NewCgroupMemory(read func(pid int) ([]cgroup.Group, error), now func() time.Time) *CgroupMemory {
	return &CgroupMemory{read: read, now: now, seen: map[int]seenCgroups{}}
}

// Of returns the control groups of a process, nil where they are not known.
func (m *CgroupMemory) Of(pid int) []cgroup.Group {
	groups, err := m.read(pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if now.Sub(m.pruned) > cgroupsKept {
		m.pruned = now
		maps.DeleteFunc(m.seen, func(_ int, s seenCgroups) bool { return now.Sub(s.at) > cgroupsKept })
	}
	if err != nil {
		return m.seen[pid].groups
	}
	m.seen[pid] = seenCgroups{groups, now}
	return groups
}
