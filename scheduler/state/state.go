package state

import (
	"reflect"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// State guards what is believed of the cluster. Its methods may be used by many
// goroutines.
type State struct {
	mu sync.Mutex
	tx Tx
}

// Reader reads the state. It is valid within [State.View] and [State.Update].
type Reader struct {
	clock
	*settings
	*contact
	*nodes
	*jobs
	*allocs
	*books
	*promises
	*reservations
	*records
	*measurements
	*learned
	*unused
	version uint64                     // grows with every change
	saved   map[nomad.JobKey]time.Time // when a job told that its work is saved

	waits waitlist
	// returning are the allocs that failed and that Nomad starts again, by ID.
	returning map[string]returning

	futile  map[string]bool   // groups that no eviction would help: job/group
	unmoved map[string]string // why no work was moved for groups: job/group

	quotas  *place.Quotas // nil without queues
	past    *quota.Past   // what queues held over time
	history history
	rooms   map[string]*Room // by the name of the need
	swept   time.Time        // when unused rooms were forgotten
	// lifetimes is how long work runs, outlook when what waits is likely to start.
	lifetimes forecast.Lifetimes
	outlook   starts
	turnover  turnover
	wanted    wanted // since when what waits does
}

// Tx reads and changes the state. It is valid within [State.Update].
type Tx struct {
	Reader
	departed
}

// New returns a state that knows nothing yet.
func New(c *config.Config, now func() time.Time) *State {
	set := &settings{c}
	n, j, m := newNodes(), newJobs(set), newMeasurements(now, set)
	a, b := newAllocs(now, j), newBooks(n, j)
	s := &State{tx: Tx{Reader: Reader{
		clock: now, settings: set, contact: &contact{clock: now}, nodes: n, jobs: j, books: b, allocs: a,
		rooms: map[string]*Room{}, waits: waitlist{lanes: map[lane]*laneList{}, of: map[nomad.JobKey][]*Waiting{}}, returning: map[string]returning{},
		promises: newPromises(), reservations: newReservations(now), records: newRecords(now, j),
		futile: map[string]bool{}, wanted: wanted{}, unmoved: map[string]string{},
		measurements: m, learned: newLearned(set, j, a, b, m), unused: newUnused(now, set, j, a, b, m), past: quota.NewPast(c.HalfLife),
		history: history{evicted: newEvictions[nomad.JobKey](), byQueue: newEvictions[string](), moved: map[nomad.JobKey]time.Time{}, idle: map[nomad.JobKey]time.Time{}, overran: map[string]time.Time{}, saved: &record.History{}},
	}}}
	s.tx.newPlanners()
	return s
}

// View lets f read the state.
func (s *State) View(f func(*Reader)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.tx.Reader)
}

// Update lets f change the state, and returns what f returns. What f does stays
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

// Configure replaces the configuration, after which everything is booked and judged anew. It
// does nothing where the configuration is what it was: queues are read again every few seconds.
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
	clear(tx.rooms)
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
