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

// Reader reads the state. It is valid within [State.View] and [State.Update].
type Reader struct {
	version uint64 // grows with every change

	clock
	*settings

	Cluster  *Cluster
	Capacity *Capacity
	Queue    *Queue
}

// Cluster holds the nodes, jobs and allocs that Nomad shows, and their measured use of GPUs.
type Cluster struct {
	*contact
	*nodes
	*jobs
	*allocs
	*checkpoints
	wanted
	*lifetimes
	*measurements
	*learned
	*unused
}

// Capacity holds the usages booked on the nodes for allocs, promises and reservations, and knows the
// room beside them.
type Capacity struct {
	*books
	*promises
	*reservations
	*disruptions
	*rooms
}

// Queue holds the waiting groups in their order, the decisions about jobs and the limits of queues.
type Queue struct {
	*records
	*returns
	*completions
	*quotas
	*waitlist
	*reasons
	*starts
	*history
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
	c := &Cluster{contact: &contact{clock: now}, nodes: newNodes(), jobs: newJobs(set), checkpoints: &checkpoints{}, wanted: wanted{}}
	c.allocs = newAllocs(now, c.jobs)
	c.lifetimes = &lifetimes{clock: now, jobs: c.jobs, allocs: c.allocs}
	c.measurements = newMeasurements(now, set)

	k := &Capacity{books: newBooks(c.nodes, c.jobs), promises: newPromises(), reservations: newReservations(now), disruptions: newDisruptions(now, set, c.jobs, c.allocs)}
	k.rooms = newRooms(now, set, c.allocs, k.books)
	c.learned = newLearned(set, c.jobs, c.allocs, k.books, c.measurements)
	c.unused = newUnused(now, set, c.jobs, c.allocs, k.books, c.measurements)

	q := &Queue{records: newRecords(now, c.jobs), quotas: newQuotas(set, c.allocs, k.books), reasons: newReasons(), starts: newStarts(now), history: &history{}}
	q.returns = newReturns(now, c.jobs, c.allocs, k.promises, q.records)
	q.completions = newCompletions(now, c.jobs, c.allocs, q.records, q.returns)
	q.waitlist = newWaitlist(now, set, c.jobs, c.lifetimes, k.promises, q.records, k.books)
	return Reader{clock: now, settings: set, Cluster: c, Capacity: k, Queue: q}
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
	tx.Capacity.books.planWith(&tx.Config().Placement)
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
	clear(tx.Capacity.rooms.byNeed)
	for key := range tx.Cluster.jobs.blocked {
		tx.Queue.enlist(key)
	}
	tx.version++
	tx.Capacity.books.epoch++
	return newPlanner
}

// Trouble notes something that should not have happened, for people.
func (s *State) Trouble(err error) {
	s.Do(func(tx *Tx) { tx.trouble(err) })
}

// Version grows with every change, so that a reader sees whether it must look
// again.
func (r *Reader) Version() uint64 { return r.version }

// Changed notes a change that only its maker knows of.
func (tx *Tx) Changed() { tx.version++ }

// trouble notes something that should not have happened, for people.
func (tx *Tx) trouble(err error) {
	tx.Queue.history.trouble(tx.Now(), err)
	tx.version++
}
