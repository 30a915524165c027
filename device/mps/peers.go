// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// peer is who has connected to a gate. That is the kernel's word: the credentials
// that a program sends can be another's, if it is root in its container.
type peer struct {
	unix.Ucred
	// group is its control group, which tells tasks apart.
	group string
}

func peerOf(c mpswire.Conn) (peer, error) {
	who, err := credentialsOf(c)
	if err != nil {
		return peer{}, fmt.Errorf("ask who has connected: %w", err)
	}
	if who.Pid <= 0 {
		return peer{}, fmt.Errorf("the program that has connected is not of this machine's processes")
	}
	groups, err := cgroup.Of(int(who.Pid))
	if err != nil {
		return peer{Ucred: *who}, fmt.Errorf("ask whose process %d is: %w", who.Pid, err)
	}
	return peer{Ucred: *who, group: deepest(groups)}, nil
}

// deepest is the control group of the hierarchy in which a process lies deepest, which
// tells most.
func deepest(groups []cgroup.Group) string {
	path := ""
	for _, g := range groups {
		if len(g.Path) > len(path) {
			path = g.Path
		}
	}
	return path
}

// credentialsOf returns who is at the other end of a connection.
func credentialsOf(c mpswire.Conn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var who *unix.Ucred
	var problem error
	if err := raw.Control(func(fd uintptr) {
		who, problem = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return who, problem
}

const (
	// maxPerGroup and maxConnections are how many connections may be under way, of
	// one task and of all. While crowded connections are open, a task gets fewPerGroup, so
	// that an author with many tasks leaves room for the tasks of others.
	maxPerGroup    = 64
	maxConnections = 1024
	crowded        = maxConnections / 2
	fewPerGroup    = 4
	// penalty is how long a task that held the daemon up is not waited for again,
	// and how often to log what the same task is refused.
	penalty = time.Minute
)

// peers knows who has connected to a gate, so that no task can take the daemon's
// time or the gate's from others.
type peers struct {
	now func() time.Time

	mu      sync.Mutex
	total   int
	byGroup map[string]int
	// silentAt is when a task held the daemon up, complaint when that or something
	// else of it was logged.
	silentAt, complaint map[string]time.Time
	// clients are the programs that were admitted and may still run.
	clients map[process]uint32
}

func newPeers(now func() time.Time) *peers {
	return &peers{now: now, byGroup: map[string]int{}, silentAt: map[string]time.Time{}, complaint: map[string]time.Time{}, clients: map[process]uint32{}}
}

// enter counts a connection until leave is called.
func (s *peers) enter(p peer) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byGroup[p.group] >= maxPerGroup:
		return nil, fmt.Errorf("its task has %d connections under way", maxPerGroup)
	case s.total >= crowded && s.byGroup[p.group] >= fewPerGroup:
		return nil, fmt.Errorf("%d connections are under way, %d of them its task's", s.total, s.byGroup[p.group])
	case s.total >= maxConnections:
		return nil, fmt.Errorf("%d connections are under way", maxConnections)
	}
	s.total++
	s.byGroup[p.group]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.byGroup[p.group]--; s.byGroup[p.group] == 0 {
			delete(s.byGroup, p.group)
		}
	}, nil
}

// patience returns what ends the wait for a program's status: the time, at once if
// its task was waited for in vain before.
func (s *peers) patience(p peer, most time.Duration) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent(s.silentAt, p.group) {
		most = 0
	}
	return time.After(most)
}

// silent notes that a program has held the daemon up.
func (s *peers) silent(p peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silentAt[p.group] = s.now()
}

// mayComplain reports whether to log what a program was refused: once in a while
// for each task.
func (s *peers) mayComplain(p peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent(s.complaint, p.group) {
		return false
	}
	s.complaint[p.group] = s.now()
	return true
}

// recent reports whether something was a short time ago, and forgets all that is
// older. The caller holds mu.
func (s *peers) recent(times map[string]time.Time, group string) bool {
	now := s.now()
	for other, at := range times {
		if now.Sub(at) >= penalty {
			delete(times, other)
		}
	}
	_, found := times[group]
	return found
}

// admitted notes that a program was given to the server.
func (s *peers) admitted(p peer) {
	found, err := procs.Find(int(p.Pid))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.clients, func(client process, _ uint32) bool { return !client.Alive() })
	s.clients[found] = p.Uid
}

// checkUser refuses a program whose user is another than that of the programs on a
// server that takes one user at a time. The daemon would let it wait without a word
// until those have ended, and all that come after it.
func (s *peers) checkUser(p peer, daemon mpswire.Conn) error {
	who, err := credentialsOf(daemon)
	if err != nil || slices.ContainsFunc(children(int(who.Pid)), multiUserServer) || slices.Contains(arguments(int(who.Pid)), "-m") {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for client, user := range s.clients {
		if user != p.Uid && client.Alive() {
			return fmt.Errorf("programs of user %d are on the server, which takes one user at a time", user)
		}
	}
	return nil
}
