// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Fit is how well a node can take an alloc.
type Fit uint8

// How a node can take an alloc.
const (
	unjudged     Fit = iota
	FitsNever        // it may not go there, or not even if the node was empty
	FitsNow          // the node takes work and has room
	FitsLater        // when other work ends
	FitsWhenBack     // when the node takes work again
	fits             // how many there are
)

// Room is how well each node can take an alloc of one need. Most of what waits asks for
// the same as something else, and little changes between two looks: so there is one Room
// for all that ask for the same, and it judges a node when it is asked about it, and
// again when something changed there.
//
// It is valid within the transaction.
type Room struct {
	rooms   *rooms
	need    *Need
	touches uint64 // as of
	used    time.Time
	fits    []Fit     // by seat
	open    []int     // seats that may be unjudged
	count   [fits]int // of nodes that are judged
	leaving map[leaver]*leaving
}

// unusedRoom is after how long a room that nothing asks for is forgotten.
const unusedRoom = time.Minute

// rooms are how well the nodes can take the requests.
type rooms struct {
	clock    clock
	settings *settings
	allocs   *allocs
	books    *books
	byNeed   map[string]*Room // by the name of the need
	swept    time.Time        // when unused ones were forgotten
}

func newRooms(c clock, s *settings, a *allocs, b *books) *rooms {
	return &rooms{clock: c, settings: s, allocs: a, books: b, byNeed: map[string]*Room{}}
}

// RoomFor is the room for a need.
func (l *rooms) RoomFor(n *Need) *Room {
	l.sweep()
	name := n.name()
	m := l.byNeed[name]
	if m == nil {
		m = &Room{rooms: l, need: n, touches: ^uint64(0)}
		l.byNeed[name] = m
	}
	m.used = l.clock.Now()
	m.follow()
	return m
}

// sweep forgets what nothing has asked for lately.
func (l *rooms) sweep() {
	now := l.clock.Now()
	if now.Sub(l.swept) <= unusedRoom {
		return
	}
	l.swept = now
	maps.DeleteFunc(l.byNeed, func(_ string, m *Room) bool { return now.Sub(m.used) > unusedRoom })
	for _, m := range l.byNeed {
		maps.DeleteFunc(m.leaving, func(_ leaver, one *leaving) bool { return now.Sub(one.used) > unusedRoom })
	}
}

// follow forgets the judgments about nodes where something changed since.
func (m *Room) follow() {
	s := &m.rooms.books.seats
	touched, known := s.since(m.touches)
	m.touches = s.touches()
	if !known {
		m.fits, m.open, m.count, m.leaving = nil, nil, [fits]int{}, map[leaver]*leaving{}
	}
	for at := len(m.fits); at < len(s.nodes); at++ {
		m.fits, m.open = append(m.fits, unjudged), append(m.open, at)
	}
	for _, at := range touched {
		if m.fits[at] != unjudged {
			m.count[m.fits[at]]--
			m.fits[at] = unjudged
			m.open = append(m.open, at)
		}
	}
	for _, l := range m.leaving {
		l.stale = append(l.stale, touched...)
	}
}

// judge says how well the node on a seat fits.
func (m *Room) judge(at int) Fit {
	if m.fits[at] == unjudged {
		m.fits[at] = m.rooms.books.fit(m.rooms.books.seats.nodes[at], m.need)
		m.count[m.fits[at]]++
	}
	return m.fits[at]
}

// all judges every node.
func (m *Room) all() *Room {
	for _, at := range m.open {
		m.judge(at)
	}
	m.open = m.open[:0]
	return m
}

// On is how well a node fits.
func (m *Room) On(node string) Fit {
	if at, known := m.rooms.books.seats.of[node]; known {
		return m.judge(at)
	}
	return FitsNever
}

// Count is how many nodes fit so.
func (m *Room) Count(how Fit) int { return m.all().count[how] }

// AnyNow reports whether a node has room now that except does not name.
func (m *Room) AnyNow(except map[string]string) bool {
	left := m.Count(FitsNow)
	for node := range except {
		if left > 0 && m.On(node) == FitsNow {
			left--
		}
	}
	return left > 0
}

// leaver is for whom work has to leave.
type leaver struct {
	priority int
	own      nomad.JobKey // whose allocs stay; empty for a job that has none
}
