package device

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// culprit is whose program brought an MPS server into FAULT. It is found once: the
// program ends by its error, and what is said of a fault must not change.
type culprit struct {
	since time.Time
	lease string
	// who is the task in words, empty for a program of no task.
	who string
}

// serverFault is what stands of a unit's MPS server, and the lease of the task that
// caused it.
func (r *reconciler) serverFault(u *plan.Unit, status mps.Status, leases []gpu.Lease) (*gpu.Fault, string) {
	c := r.culprits[u.UUID]
	if c.since != status.Since || c.since.IsZero() {
		c = r.findCulprit(u, status, leases)
		r.culprits[u.UUID] = c
	}
	f := &gpu.Fault{Code: "mps-fault", Message: status.Reason, Since: status.Since, Fatal: true,
		Action: "it takes new clients when the programs of all tasks on the device have ended"}
	if c.who != "" {
		f.Message = fmt.Sprintf("process %d of %s had a fatal GPU error: its server takes no new clients until all that were there have ended", status.Culprit, c.who)
	}
	return f, c.lease
}

// findCulprit finds the task of the process that the server's log names.
func (r *reconciler) findCulprit(u *plan.Unit, status mps.Status, leases []gpu.Lease) culprit {
	found := culprit{since: status.Since}
	if status.Culprit == 0 {
		return found
	}
	groups := r.cgroups(status.Culprit)
	for _, l := range leases {
		onUnit := slices.ContainsFunc(l.Holdings, func(h gpu.Holding) bool { return h.UUID == u.UUID })
		if onUnit && cgroup.Within(groups, l.Cgroup) {
			found.lease, found.who = l.ID, fmt.Sprintf("task %s of job %s (allocation %s)", l.Task, l.Job, l.AllocID)
		}
	}
	return found
}

// cgroupMemory reads the control groups of processes, and knows them for a while
// after the processes ended: what a log tells of may be gone when it is read.
type cgroupMemory struct {
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

func newCgroupMemory(read func(pid int) ([]cgroup.Group, error), now func() time.Time) *cgroupMemory {
	return &cgroupMemory{read: read, now: now, seen: map[int]seenCgroups{}}
}

// of returns the control groups of a process, nil where they are not known.
func (m *cgroupMemory) of(pid int) []cgroup.Group {
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
