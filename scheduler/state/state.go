package state

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
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
	now     func() time.Time
	config  *config.Config
	index   uint64                     // Nomad's, of the last change
	synced  time.Time                  // when Nomad was last heard; zero: never
	lost    error                      // why Nomad cannot be heard
	version uint64                     // grows with every change
	epoch   uint64                     // grows with every change of what fits where
	seats   seats                      // of the nodes, and where something changed
	saved   map[nomad.JobKey]time.Time // when a job told that its work is saved

	nodes  map[string]*nomad.Node
	order  []string                       // the nodes' IDs, in order
	dcs    map[string]int                 // how many nodes each datacenter has
	met    map[constraint.Constraint]bool // whether every node with GPUs meets it, as far as asked
	allocs map[string]*nomad.Alloc
	onNode map[string]map[string]*nomad.Alloc // allocs by node, which may not be known yet
	// stopping is since when those of the allocs that are to end were seen to be.
	stopping map[string]time.Time
	byJob    map[nomad.JobKey]map[string]*nomad.Alloc
	jobs     map[nomad.JobKey]*nomad.Job
	launched map[nomad.JobKey]map[string]nomad.JobKey // jobs by the periodic job that their IDs name
	blocked  map[nomad.JobKey]*nomad.Blocked
	waits    waitlist
	// returning are the allocs that failed and that Nomad starts again, by ID.
	returning map[string]returning

	assumed      map[string]*Assumed
	promised     map[nomad.JobKey]map[string]*Assumed // the same by job
	reservations map[string]*record.Reservation
	records      map[nomad.JobKey]*record.Record // as far as read
	drifted      map[nomad.JobKey]bool           // jobs that are not registered as recorded
	limited      limited                         // jobs that are recorded as kept off some nodes, and periodic ones
	futile       map[string]bool                 // groups that no eviction would help: job/group
	unmoved      map[string]string               // why no work was moved for groups: job/group
	gone         []nomad.JobKey                  // jobs that left, whose records can go

	snap     *place.Snapshot
	plan     *place.Planner
	idle     *place.Snapshot // the same nodes with nothing on them
	idlePlan *place.Planner
	quotas   *place.Quotas                     // nil without queues
	past     *quota.Past                       // what queues held over time
	measured map[string]nomad.Measurements     // by node
	hot      map[string]heat                   // GPUs by ID that are measured to be fully used
	unused   map[string]map[idleKey]unusedSpan // what is held and not used, by node
	learned  map[taskKey]learnedUse            // compute that tasks use
	surplus  map[string]int64                  // GPUs by ID that are used more than is expected, in milli
	flagged  map[string]bool                   // allocs that are booked as idle
	checked  time.Time                         // when that was looked at
	history  history
	rooms    map[string]*Room // by the name of the need
	swept    time.Time        // when unused rooms were forgotten
	// lifetimes is how long work runs, outlook when what waits is likely to start.
	lifetimes forecast.Lifetimes
	outlook   starts
	turnover  turnover
	wanted    wanted // since when what waits does
}

// Tx reads and changes the state. It is valid within [State.Update].
type Tx struct{ Reader }

// New returns a state that knows nothing yet.
func New(c *config.Config, now func() time.Time) *State {
	s := &State{tx: Tx{Reader{
		now: now, config: c,
		nodes: map[string]*nomad.Node{}, dcs: map[string]int{}, met: map[constraint.Constraint]bool{}, seats: seats{of: map[string]int{}}, rooms: map[string]*Room{}, waits: waitlist{lanes: map[lane]*laneList{}, of: map[nomad.JobKey][]*Waiting{}}, onNode: map[string]map[string]*nomad.Alloc{}, allocs: map[string]*nomad.Alloc{}, stopping: map[string]time.Time{}, returning: map[string]returning{}, byJob: map[nomad.JobKey]map[string]*nomad.Alloc{},
		jobs: map[nomad.JobKey]*nomad.Job{}, launched: map[nomad.JobKey]map[string]nomad.JobKey{}, blocked: map[nomad.JobKey]*nomad.Blocked{},
		assumed: map[string]*Assumed{}, promised: map[nomad.JobKey]map[string]*Assumed{}, reservations: map[string]*record.Reservation{},
		records: map[nomad.JobKey]*record.Record{}, drifted: map[nomad.JobKey]bool{}, limited: newLimited(), futile: map[string]bool{}, wanted: wanted{}, unmoved: map[string]string{}, hot: map[string]heat{}, unused: map[string]map[idleKey]unusedSpan{}, flagged: map[string]bool{}, learned: map[taskKey]learnedUse{}, surplus: map[string]int64{},
		snap: place.NewSnapshot(), idle: place.NewSnapshot(), measured: map[string]nomad.Measurements{}, past: quota.NewPast(c.HalfLife),
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
	tx.plan = place.NewPlanner(tx.snap, tx.config.Placement.Policy, tx.config.Placement.Weights)
	tx.plan.ExpectEnds()
	tx.idlePlan = place.NewPlanner(tx.idle, place.PolicyPack, tx.config.Placement.Weights)
	tx.setQuotas()
}

// Configure replaces the configuration, after which everything is booked and judged anew. It
// does nothing where the configuration is what it was: queues are read again every few seconds.
// It reports whether the planner is a new one, which has learned nothing yet.
func (tx *Tx) Configure(c *config.Config) (newPlanner bool) {
	if reflect.DeepEqual(tx.config, c) {
		return false
	}
	newPlanner = tx.config.Placement != c.Placement
	tx.config = c
	if newPlanner {
		tx.newPlanners()
	}
	tx.setQuotas()
	tx.rebookAll()
	clear(tx.rooms)
	for key := range tx.blocked {
		tx.enlist(key)
	}
	tx.version++
	tx.epoch++
	return newPlanner
}

// Heard notes that Nomad has spoken.
func (s *State) Heard() {
	s.Do(func(tx *Tx) { tx.synced, tx.lost = tx.now(), nil })
}

// Lost notes why Nomad cannot be heard.
func (s *State) Lost(err error) {
	s.Do(func(tx *Tx) { tx.lost = err })
}

// Trouble notes something that should not have happened, for people.
func (s *State) Trouble(err error) {
	s.Do(func(tx *Tx) { tx.Trouble(err) })
}

// ErrBlind is wrapped while the service has no view of the cluster.
var ErrBlind = errors.New("no view of the cluster")

// tooOld is how long Nomad may be silent until the view is no view any more.
const tooOld = time.Minute

// Ready says why nothing can be decided now.
func (r *Reader) Ready() error {
	switch {
	case r.synced.IsZero() && r.lost != nil:
		return fmt.Errorf("%w: %w", ErrBlind, r.lost)
	case r.synced.IsZero():
		return fmt.Errorf("%w: Nomad has not answered yet", ErrBlind)
	case r.now().Sub(r.synced) > tooOld:
		return fmt.Errorf("%w: Nomad was last heard %s ago", ErrBlind, r.now().Sub(r.synced).Round(time.Second))
	}
	return nil
}

// Now is what time it is.
func (r *Reader) Now() time.Time { return r.now() }

// Config is the configuration, which must not be changed.
func (r *Reader) Config() *config.Config { return r.config }

// Synced is when Nomad was last heard; zero: never.
func (r *Reader) Synced() time.Time { return r.synced }

// Index is Nomad's, of the last change.
func (r *Reader) Index() uint64 { return r.index }

// Version grows with every change, so that a reader sees whether it must look
// again.
func (r *Reader) Version() uint64 { return r.version }

// Epoch grows with every change of what fits where.
func (r *Reader) Epoch() uint64 { return r.epoch }

// Changed notes a change that only its maker knows of.
func (tx *Tx) Changed() { tx.version++ }

// Trouble notes something that should not have happened, for people.
func (tx *Tx) Trouble(err error) {
	tx.history.trouble(tx.now(), err)
	tx.version++
}

// Try runs f, which leaves everything as it was: what was looked for in vain before
// still is.
func (tx *Tx) Try(f func()) {
	epoch := tx.epoch
	f()
	tx.epoch = epoch
}
