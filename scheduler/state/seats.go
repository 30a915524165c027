// SPDX-License-Identifier: MPL-2.0

package state

// touchedKept is how many touches are kept, from half of it up.
const touchedKept = 8192

// seats numbers the nodes, for tables that say something of each, and lists in which
// order something changed on them that decides what fits there: whoever looked at all
// nodes once need not look again at those where nothing did. A node keeps its seat; that
// of a node that left is given to the next that comes.
type seats struct {
	of    map[string]int
	nodes []string // by seat; empty: free
	free  []int

	first   uint64 // how many touches came before the list
	touched []int
}

func newSeats() seats { return seats{of: map[string]int{}} }

// take gives a node a seat, if it has none.
func (s *seats) take(node string) {
	if _, seated := s.of[node]; seated {
		return
	}
	at := len(s.nodes)
	if last := len(s.free) - 1; last >= 0 {
		at, s.free = s.free[last], s.free[:last]
		s.nodes[at] = node
	} else {
		s.nodes = append(s.nodes, node)
	}
	s.of[node] = at
}

// leave frees the seat of a node.
func (s *seats) leave(node string) {
	if at, seated := s.of[node]; seated {
		delete(s.of, node)
		s.nodes[at] = ""
		s.free = append(s.free, at)
	}
}

// touch notes that something changed on a node that has a seat.
func (s *seats) touch(node string) {
	at, seated := s.of[node]
	if !seated {
		return
	}
	if len(s.touched) >= touchedKept {
		s.first += touchedKept / 2
		s.touched = append([]int(nil), s.touched[touchedKept/2:]...)
	}
	s.touched = append(s.touched, at)
}

// touches is how often something has changed so far.
func (s *seats) touches() uint64 { return s.first + uint64(len(s.touched)) }

// since lists the seats on which something changed after that number of touches, some of them
// more than once. It returns false where that is too long ago.
func (s *seats) since(touches uint64) ([]int, bool) {
	if touches < s.first || touches > s.touches() {
		return nil, false
	}
	return s.touched[touches-s.first:], true
}
