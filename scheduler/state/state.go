// SPDX-License-Identifier: MPL-2.0

package state

import (
	"reflect"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

// State guards the service's view of the cluster. Its methods may be used by many
// goroutines.
type State struct {
	mu sync.Mutex
	tx Tx
}

// Reader reads the state. It is valid within [State.View] and [State.Update]. It is made of
// parts. Each has fields and methods of its own, and knows only some of those above it
// in this list. Questions that need several at once go to a Reader.
type Reader struct {
	version uint64 // grows with every change

	clock
	*settings
	*contact
	*history
	*reasons
	*checkpoints
	wanted
	*starts

	*nodes
	*jobs
	*allocs
	*promises
	*reservations

	*records
	*returns
	*completions
	*books
	*disruptions
	*lifetimes

	*quotas
	*waitlist
	*rooms
	*measurements
	*learned
	*unused
}

// Tx reads and changes the state. It is valid within [State.Update].
type Tx struct {
	Reader
	departed
	handover
	turnover turnover
	arrivals arrivals
}

// New returns a state that knows nothing yet.
func New(c *config.Config, now func() time.Time) *State {
	s := &State{tx: Tx{Reader: newReader(&settings{c}, now), handover: newHandover()}}
	s.tx.newPlanners()
	return s
}

// newReader makes the parts, each of those that it knows.
func newReader(set *settings, now clock) Reader {
	r := Reader{
		clock: now, settings: set, contact: &contact{clock: now}, history: &history{}, reasons: newReasons(),
		checkpoints: &checkpoints{}, wanted: wanted{}, starts: newStarts(now),
		nodes: newNodes(), jobs: newJobs(set), promises: newPromises(), reservations: newReservations(now),
	}
	r.allocs = newAllocs(now, r.jobs)

	r.records = newRecords(now, r.jobs)
	r.returns = newReturns(now, r.jobs, r.allocs, r.promises, r.records)
	r.completions = newCompletions(now, r.jobs, r.allocs, r.records, r.returns)
	r.books = newBooks(r.nodes, r.jobs)
	r.disruptions = newDisruptions(now, set, r.jobs, r.allocs)
	r.lifetimes = &lifetimes{clock: now, jobs: r.jobs, allocs: r.allocs}

	r.quotas = newQuotas(set, r.allocs, r.books)
	r.waitlist = newWaitlist(now, set, r.jobs, r.lifetimes, r.promises, r.records, r.books)
	r.rooms = newRooms(now, set, r.allocs, r.books)
	r.measurements = newMeasurements(now, set)
	r.learned = newLearned(set, r.jobs, r.allocs, r.books, r.measurements)
	r.unused = newUnused(now, set, r.jobs, r.allocs, r.books, r.measurements)
	return r
}

// View lets f read the state.
func (s *State) View(f func(*Reader)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.tx.Reader)
}

// Update lets f change the state, and returns f's error. Changes by f stay
// also when it fails: f takes back what it must (see [Tx.Savepoint]).
func (s *State) Update(f func(*Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(&s.tx)
}

// Do is Update for what cannot fail.
func (s *State) Do(f func(*Tx)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.tx)
}

// newPlanners makes planners with the present configuration.
func (tx *Tx) newPlanners() {
	tx.books.planWith(&tx.Config().Placement)
	tx.setQuotas()
}

// Configure replaces the configuration, after which everything is booked and judged again. It
// does nothing where the configuration is unchanged: queues are read again every few seconds.
// It reports whether the planner is a new one, which has learned nothing yet.
func (tx *Tx) Configure(c *config.Config) (newPlanner bool) {
	if reflect.DeepEqual(tx.Config(), c) {
		return false
	}
	newPlanner = tx.Config().Placement != c.Placement
	tx.settings.config = c
	if newPlanner {
		tx.newPlanners()
	}
	tx.setQuotas()
	tx.rebookAll()
	clear(tx.rooms.byNeed)
	for key := range tx.jobs.blocked {
		tx.enlist(key)
	}
	tx.version++
	tx.books.epoch++
	return newPlanner
}

// Trouble notes something that should not have happened, for people.
func (s *State) Trouble(err error) {
	s.Do(func(tx *Tx) { tx.Trouble(err) })
}

// Version grows with every change, so that a reader sees whether it must look
// again.
func (r *Reader) Version() uint64 { return r.version }

// Changed notes a change that only its maker knows of.
func (tx *Tx) Changed() { tx.version++ }

// Trouble notes something that should not have happened, for people.
func (tx *Tx) Trouble(err error) {
	tx.history.trouble(tx.Now(), err)
	tx.version++
}
