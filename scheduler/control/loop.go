package control

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"golang.org/x/time/rate"
)

// Actor changes jobs and stops allocs; *nomad.Actor does.
type Actor interface {
	Read(ctx context.Context, key nomad.JobKey) ([]byte, error)
	Register(ctx context.Context, key nomad.JobKey, body []byte) error
	Stop(ctx context.Context, allocID string) error
	// Allocs reads what occupies a node now, and at which index.
	Allocs(ctx context.Context, nodeID string) ([]*nomad.Alloc, uint64, error)
}

// Decider decides; *decide.Decider does.
type Decider interface {
	Revise(ctx context.Context, asks []admit.Ask, r decide.Revision) ([]admit.Decision, error)
	Settle(ctx context.Context, asks []admit.Ask, decisions []admit.Decision, accepted bool)
	Purge(ctx context.Context) error
	Forget(ctx context.Context, r decide.Reservation) error
	Save(ctx context.Context) error
}

// Book says what there is to do; *decide.Book does.
type Book interface {
	NextDue(skip map[string]bool, mayEvict bool) *decide.Due
	Confirm(nodeID string, allocs []*nomad.Alloc, index uint64) bool
	Promise(decide.Promise)
	Withdraw(decide.Promise)
	Note(view.Event)
	Untold() []view.Event
	Expire() []decide.Reservation
	Moves(most int) []decide.Move
}

// Loop is the control loop of a leading replica.
type Loop struct {
	Book    Book
	Decider Decider
	Actor   Actor
	Config  func() *config.Config
	Logger  hclog.Logger
	// Audit writes what was done into the audit log; nil for none.
	Audit func(view.Event)

	skip     map[string]time.Time // jobs that could not be helped, until when
	limiter  *rate.Limiter
	balanced time.Time // when moves were looked for last
}

const (
	// beat is how often the loop looks without being told of a change.
	beat = time.Second
	// pause is how long a job that could not be helped is left alone.
	pause = 5 * time.Second
	// perRound bounds the work of one round, so that nothing starves.
	perRound = 50
)

// Run loops until the context ends, which is when this replica ceases to lead.
func (l *Loop) Run(ctx context.Context) {
	l.begin()
	tick := time.NewTicker(beat)
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
	l.skip, l.balanced = map[string]time.Time{}, time.Now()
	perMinute := l.Config().Preemption.MaxPerMinute
	l.limiter = rate.NewLimiter(perSecond(perMinute), perMinute)
}

// round does what is due now.
func (l *Loop) round(ctx context.Context) {
	for _, r := range l.Book.Expire() {
		l.report("forget an expired reservation", l.Decider.Forget(ctx, r))
	}
	l.report("purge decisions about jobs that are gone", l.Decider.Purge(ctx))
	l.limit()
	for range perRound {
		due := l.Book.NextDue(l.skipped(time.Now()), l.limiter.Tokens() >= 1 || l.Config().Preemption.DryRun)
		if ctx.Err() != nil {
			return
		}
		if due == nil {
			break
		}
		if !l.do(ctx, due) {
			l.skip[due.Job.String()] = time.Now().Add(pause)
		}
	}
	l.rebalance(ctx)
	l.tell(ctx)
}

// tell writes down what was done: into the audit log, and where the next leader
// finds it.
func (l *Loop) tell(ctx context.Context) {
	for _, e := range l.Book.Untold() {
		if l.Audit != nil {
			l.Audit(e)
		}
	}
	l.report("store what was done", l.Decider.Save(ctx))
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

// do carries out one thing. It returns false when nothing came of it and the
// job should rest.
func (l *Loop) do(ctx context.Context, due *decide.Due) bool {
	switch {
	case due.Evict != nil && due.Revision.Hold != nil:
		return l.bringBack(ctx, due)
	case due.Evict != nil:
		return l.evict(ctx, due)
	}
	changed, err := l.revise(ctx, due.Job, due.Revision)
	l.report("revise job "+due.Job.String(), err)
	return changed && err == nil
}

// revise changes a registered job by a revision.
func (l *Loop) revise(ctx context.Context, key nomad.JobKey, r decide.Revision) (bool, error) {
	body, err := l.Actor.Read(ctx, key)
	if err != nil {
		return false, err
	}
	job, err := admit.Read(body, admit.Query{Namespace: key.Namespace, Devices: l.Config().DeviceNames()})
	if err != nil {
		return false, err
	}
	decisions, err := l.Decider.Revise(ctx, job.Asks, r)
	if err != nil || decisions == nil {
		return false, err
	}
	next, err := job.Apply(decisions, admit.Link{})
	if err == nil {
		err = l.Actor.Register(ctx, key, next)
	}
	l.Decider.Settle(ctx, job.Asks, decisions, err == nil)
	return err == nil, err
}

func (l *Loop) report(what string, err error) {
	if err != nil {
		l.Logger.Warn("could not "+what, "error", err)
	}
}
