// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Actor changes jobs and stops allocs; *nomad.Actor does.
type Actor interface {
	Read(ctx context.Context, key nomad.JobKey) ([]byte, error)
	Register(ctx context.Context, key nomad.JobKey, body []byte) error
	// Scale sets counts of a job that is as it was at an index, one after the other.
	Scale(ctx context.Context, key nomad.JobKey, index uint64, steps []admit.Scaling) error
	Stop(ctx context.Context, allocID string, atOnce bool) error
	// Allocs reads what occupies a node now, and at which index.
	Allocs(ctx context.Context, nodeID string) ([]*nomad.Alloc, uint64, error)
}

// Decider records decisions; *leader.Decider does.
type Decider interface {
	Revise(ctx context.Context, asks []admit.Ask, r decide.Revision) ([]admit.Decision, error)
	Settle(ctx context.Context, asks []admit.Ask, decisions []admit.Decision, accepted bool)
}

// Keeper keeps stored data in step with time; *leader.Decider does.
type Keeper interface {
	// Expire ends promises and reservations whose time is up.
	Expire(ctx context.Context) error
	// Purge deletes decisions about jobs that are gone.
	Purge(ctx context.Context) error
	// Save stores the actions since the last time.
	Save(ctx context.Context) error
}

// Work says what there is to do; *Finder does.
type Work interface {
	Next(tx *state.Tx, skip map[string]bool, mayEvict bool) *Item
	// Moves says what would pay to be elsewhere, Relief what to move for what waits.
	Moves(tx *state.Tx, most int) []Move
	Relief(tx *state.Tx, most int) *Item
}

// Loop is the control loop of a leading replica.
type Loop struct {
	State   *state.State
	Work    Work
	Decider Decider
	Keeper  Keeper
	Actor   Actor
	Config  func() *config.Config
	Logger  hclog.Logger
	// Recuts has GPUs cut again; nil for none.
	Recuts *Recuts
	// Audit writes events into the audit log; nil for none.
	Audit func(view.Event)

	skip     map[string]time.Time // jobs that could not be helped, until when
	failing  map[string]failure   // failures, by the attempted action
	limiter  *rate.Limiter
	balanced time.Time // when moves were looked for last
	fitted   uint64    // the version of the state for which it was worked out what would start now
}

const (
	// resync is how often the loop looks for something to do.
	resync = time.Second
	// pause is how long a job that could not be helped is left alone.
	pause = 5 * time.Second
	// perRound bounds the work of one round, so that nothing starves.
	perRound = 50
	// sayAgain is after how long a failure that stays the same is logged again.
	sayAgain = time.Hour
)

// failure is something that could not be done, and may be tried again and again.
type failure struct {
	why        string
	said, last time.Time
}

// Run loops until the context ends, which is when this replica ceases to lead.
func (l *Loop) Run(ctx context.Context) {
	l.begin()
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		l.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// begin forgets what an earlier time of leading left.
func (l *Loop) begin() {
	l.skip, l.failing, l.balanced = map[string]time.Time{}, map[string]failure{}, time.Now()
	perMinute := l.Config().Preemption.MaxPerMinute
	l.limiter = rate.NewLimiter(perSecond(perMinute), perMinute)
}

// round does all work that is due now.
func (l *Loop) round(ctx context.Context) {
	l.report("forget expired reservations", l.Keeper.Expire(ctx))
	l.report("purge decisions about jobs that are gone", l.Keeper.Purge(ctx))
	l.limit()
	maps.DeleteFunc(l.failing, func(_ string, f failure) bool { return time.Since(f.last) > time.Minute })
	for range perRound {
		var item *Item
		l.State.Do(func(tx *state.Tx) {
			item = l.Work.Next(tx, l.skipped(time.Now()), l.limiter.Tokens() >= 1 || l.Config().Preemption.DryRun)
		})
		if ctx.Err() != nil {
			return
		}
		if item == nil {
			break
		}
		if !l.reconcile(ctx, item) {
			l.skip[item.Job.String()] = time.Now().Add(pause)
		}
	}
	l.foresee()
	l.rebalance(ctx)
	l.recut(ctx)
	l.report("store what was done", l.tell(ctx))
}

// foreseeEvery is how often starts of what waits are estimated again.
const foreseeEvery = 15 * time.Second

// foresee estimates when what waits is likely to start.
func (l *Loop) foresee() {
	var f *decide.Foreseen
	l.State.Do(func(tx *state.Tx) {
		if tx.Cluster.Ready() == nil && tx.Now().Sub(tx.Queue.StartsNoted()) >= foreseeEvery && tx.Queue.AnyWaiting() {
			f = decide.Foresee(tx)
		}
	})
	if f == nil {
		return
	}
	starts, asItWas := f.Starts(), false // which takes longer than others should wait
	l.State.Do(func(tx *state.Tx) {
		asItWas = l.show(tx, l.fitted, func() { tx.NoteStarts(starts) })
	})
	if !asItWas {
		l.sayWhatFits()
	}
}

// sayWhatFits works out what would start now in place of what waits.
func (l *Loop) sayWhatFits() {
	var f *decide.Fitting
	var began uint64
	l.State.Do(func(tx *state.Tx) { f, began = decide.NewFitting(tx), tx.Version() })
	for more := true; more; {
		l.State.Do(func(tx *state.Tx) { more = f.Next(tx) }) // others come in between
	}
	l.State.Do(func(tx *state.Tx) {
		l.show(tx, began, func() { tx.NoteFits(f.Found()) })
	})
}

// show writes something down for people. Where nothing else has changed since the state had
// that version, its forecast stands for the new one too.
func (l *Loop) show(tx *state.Tx, since uint64, write func()) (asItWas bool) {
	asItWas = tx.Version() == since
	write()
	if asItWas {
		l.fitted = tx.Version()
	}
	return asItWas
}

// tell writes new events into the audit log, and where the next leader finds them.
func (l *Loop) tell(ctx context.Context) error {
	var untold []view.Event
	l.State.Do(func(tx *state.Tx) { untold = tx.Audit.Take() })
	for _, e := range untold {
		if l.Audit != nil {
			l.Audit(e)
		}
	}
	return l.Keeper.Save(ctx)
}

// limit applies the configured rate of evictions, which may be another now.
func (l *Loop) limit() {
	if perMinute := l.Config().Preemption.MaxPerMinute; l.limiter.Burst() != perMinute {
		l.limiter.SetBurst(perMinute)
		l.limiter.SetLimit(perSecond(perMinute))
	}
}

func perSecond(perMinute int) rate.Limit { return rate.Limit(float64(perMinute) / 60) }

func (l *Loop) skipped(now time.Time) map[string]bool {
	skip := map[string]bool{}
	for job, until := range l.skip {
		if now.Before(until) {
			skip[job] = true
		} else {
			delete(l.skip, job)
		}
	}
	return skip
}

// reconcile carries out one item. It returns false when nothing came of it and the
// job should rest.
func (l *Loop) reconcile(ctx context.Context, item *Item) bool {
	switch {
	case item.Seat != nil:
		return l.takeSeat(ctx, item)
	case item.Evict != nil && (item.Revision.Hold != nil || len(item.Revision.Only) > 0):
		return l.bringBack(ctx, item)
	case item.Evict != nil:
		return l.evict(ctx, item)
	}
	changed, err := l.revise(ctx, item.Job, item.Revision)
	l.report("revise job "+item.Job.String(), err)
	return changed && err == nil
}

// Hold makes a registered group without running allocs wait.
func (l *Loop) Hold(ctx context.Context, namespace, jobID, group string, hold admit.Hold) error {
	_, err := l.revise(ctx, nomad.JobKey{Namespace: namespace, ID: jobID}, decide.Revision{Group: group, Hold: &hold})
	return err
}

// revise changes a registered job by a revision. What runs of a child that is to wait goes on until it
// is stopped.
func (l *Loop) revise(ctx context.Context, key nomad.JobKey, r decide.Revision) (bool, error) {
	job, err := l.read(ctx, key)
	if err != nil {
		return false, err
	}
	decisions, err := l.Decider.Revise(ctx, job.Asks, r)
	if err != nil || decisions == nil {
		return false, err
	}
	steps, child := job.Scalings(decisions)
	switch {
	case !child:
		var next []byte
		if next, err = job.Apply(decisions, admit.Link{}); err == nil {
			err = l.Actor.Register(ctx, key, next)
		}
	case r.Hold == nil || !l.runs(key):
		err = l.Actor.Scale(ctx, key, job.Index, steps)
	}
	l.Decider.Settle(ctx, job.Asks, decisions, err == nil)
	return err == nil, err
}

// read reads a job as it is registered.
func (l *Loop) read(ctx context.Context, key nomad.JobKey) (*admit.Job, error) {
	body, err := l.Actor.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	return admit.Read(body, admit.Query{Namespace: key.Namespace, Devices: l.Config().DeviceNames(), Registered: true})
}

// rescale gives a child the counts that were decided.
func (l *Loop) rescale(ctx context.Context, key nomad.JobKey) error {
	job, err := l.read(ctx, key)
	if err != nil {
		return err
	}
	decisions := make([]admit.Decision, len(job.Asks))
	l.State.View(func(r *state.Reader) {
		if known := r.Queue.Record(key); known != nil {
			for i := range job.Asks {
				decisions[i] = known.Groups[job.Asks[i].Group].Decision
			}
		}
	})
	steps, _ := job.Scalings(decisions)
	return l.Actor.Scale(ctx, key, job.Index, steps)
}

// runs reports whether something of a job runs.
func (l *Loop) runs(key nomad.JobKey) (yes bool) {
	l.State.View(func(r *state.Reader) {
		yes = slices.ContainsFunc(r.Cluster.AllocsOf(key), func(a *nomad.Alloc) bool { return !a.Stopping })
	})
	return yes
}

// report logs a failure, once for each reason: one that recurs every few seconds
// would fill the log.
func (l *Loop) report(what string, err error) {
	if err == nil {
		delete(l.failing, what)
		return
	}
	f, now := l.failing[what], time.Now()
	if f.last = now; f.why != err.Error() || now.Sub(f.said) >= sayAgain {
		f.why, f.said = err.Error(), now
		l.Logger.Warn("could not "+what, "error", err)
	}
	l.failing[what] = f
}
