package decide

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Revision is a change of what was decided about a registered job. Only what
// Nomad changes in place is touched, unless nothing of the group runs.
type Revision struct {
	Group string
	// Retry places again what waits.
	Retry bool
	// Align brings the record and what is registered together.
	Align bool
	// Prefer is a node where room is being made for an alloc of the group.
	Prefer string
	room   *made
	// Exclude is a node to leave out while its room goes to For, Include one
	// to take back in.
	Exclude, For string
	Include      []string
	// Hold makes the group wait.
	Hold *admit.Hold
}

// Revise changes the decision about a job, whose asks were read from Nomad
// just now, and records the change. It returns nil when nothing has to be
// registered; otherwise the change must be settled like any decision.
func (d *Decider) Revise(ctx context.Context, asks []admit.Ask, r Revision) ([]admit.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	key := nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}
	if !d.leading() {
		return nil, fmt.Errorf("revise job %q: %w", key, ErrNotLeading)
	}
	have, err := d.read(ctx, key)
	if err != nil {
		return nil, err
	}
	revised, err := d.book.revise(key, asks, have, r)
	if err != nil || !revised.record && !revised.job {
		return nil, err
	}
	if err := revised.next.write(ctx, d.store); err != nil {
		return nil, err
	}
	d.book.remember(revised.next)
	if !revised.job {
		d.book.settled(key)
		return nil, nil
	}
	d.mu.Lock()
	d.before[key] = have
	d.mu.Unlock()
	return revised.answers, nil
}

// revised is what a revision changes: the record, the registered job, or both.
type revised struct {
	next        *Record
	answers     []admit.Decision
	record, job bool
}

func (b *Book) revise(key nomad.JobKey, asks []admit.Ask, have *Record, r Revision) (revised, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := revised{next: have.clone(), answers: make([]admit.Decision, len(asks))}
	out.next.At, out.next.settled = b.now(), time.Time{}
	wasOf := map[string]GroupRecord{}
	gang := slices.ContainsFunc(asks, func(a admit.Ask) bool { return a.Group == r.Group && a.Gang }) && (r.Retry || r.Hold != nil)
	for i := range asks {
		a := &asks[i]
		was, known := have.Groups[a.Group]
		adopted := !known || was.Key != a.Key()
		if adopted {
			was = (&choosing{book: b, key: key, ask: a}).adopt(a.Was)
		}
		g := was
		if a.Group == r.Group || gang && a.Gang {
			var err error
			if g, err = b.reviseGroup(key, a, was, r); err != nil {
				return revised{}, err
			}
		}
		out.record = out.record || adopted
		out.next.Groups[a.Group], wasOf[a.Group] = g, was
	}
	if gang {
		b.holdGang(key, asks, out.next.Groups)
	}
	for i := range asks {
		a, was, g := &asks[i], wasOf[asks[i].Group], out.next.Groups[asks[i].Group]
		different := !sameDecision(&was.Decision, &g.Decision)
		out.record = out.record || different || was.Ask.Count != g.Ask.Count || !maps.Equal(was.Excluded, g.Excluded)
		out.job = out.job || different || a.Registered() != a.Fingerprint(&g.Decision)
		out.answers[i] = g.Decision
	}
	if out.record || out.job {
		b.version++
	}
	return out, nil
}

func (b *Book) reviseGroup(key nomad.JobKey, a *admit.Ask, was GroupRecord, r Revision) (GroupRecord, error) {
	g := was
	g.Excluded = maps.Clone(was.Excluded)
	if g.Excluded == nil {
		g.Excluded = map[string]string{}
	}
	if r.Align {
		g, r.Retry = b.align(key, a, g)
	}
	if r.Exclude != "" {
		g.Excluded[r.Exclude], g.Decision.WithoutCanaries = r.For, true
		g.Decision.Preferred = slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return id == r.Exclude })
	}
	for _, id := range r.Include {
		delete(g.Excluded, id)
	}
	if len(g.Excluded) == 0 && r.Hold == nil {
		g.Decision.WithoutCanaries = false
	}
	if r.Prefer != "" {
		rest := slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return id == r.Prefer })
		g.Decision.Preferred, g.Decision.Hold = append([]string{r.Prefer}, rest...), nil
		if r.room != nil {
			b.moveIn(a, &g, r.room)
		}
	}
	if r.Hold != nil {
		g.Decision.Hold, g.Decision.WithoutCanaries = r.Hold, true
		g.Shown.At, g.Shown.Outcome, g.Shown.Summary = b.now(), view.Held, "waits for "+r.Hold.Kind+": "+r.Hold.Sentence
		b.log.decision(g.Shown)
	}
	g.Decision.Candidates = b.candidates(&g)
	if !r.Retry {
		return g, nil
	}
	return b.retry(key, a, g)
}

// retry decides anew about a group that waits, and tells of it when it need not
// wait any more.
func (b *Book) retry(key nomad.JobKey, a *admit.Ask, was GroupRecord) (GroupRecord, error) {
	before := b.flightsOf(key)
	g, err := b.reconsider(key, a, was)
	if err != nil {
		b.restore(key, before)
		return was, err
	}
	if was.Decision.Hold != nil && g.Decision.Hold == nil {
		b.log.decision(g.Shown)
		b.note(view.Event{Kind: "release", Namespace: key.Namespace, JobID: key.ID, Text: fmt.Sprintf("group %s of job %s need not wait any more for %s", a.Group, key, was.Decision.Hold.Kind)})
	}
	return g, nil
}

// reconsider decides about a group that waits as if it came now. Its device blocks
// are only written anew while nothing of it runs.
func (b *Book) reconsider(key nomad.JobKey, a *admit.Ask, was GroupRecord) (GroupRecord, error) {
	q, err := b.config.QueueFor(a.Namespace, a.Queue)
	if err != nil {
		return was, forbidden("group %q: %s", a.Group, err)
	}
	parts, err := b.parts(a, q)
	if err != nil {
		return was, err
	}
	c := &choosing{book: b, key: key, ask: a, queue: q, parts: parts}
	c.unreserved = b.claims[a.Reservation] == nil
	c.asBefore(&was)
	if err := c.shape(); err != nil {
		return was, err
	}
	was.Cost, was.Direct = c.leastCost(), false
	b.dropGroupFlights(key, a.Group)
	return c.fill(was, c.given(&was), b.live(key, a.Group))
}

func sameDecision(x, y *admit.Decision) bool {
	sameHold := x.Hold == nil && y.Hold == nil || x.Hold != nil && y.Hold != nil && *x.Hold == *y.Hold
	return sameHold && x.WithoutCanaries == y.WithoutCanaries && slices.Equal(x.Candidates, y.Candidates) && slices.Equal(x.Preferred, y.Preferred) && sameDevices(x.Tasks, y.Tasks)
}

func sameDevices(x, y []admit.TaskDecision) bool {
	return slices.EqualFunc(x, y, func(s, t admit.TaskDecision) bool {
		return s.Task == t.Task && s.Share == t.Share && slices.EqualFunc(s.Devices, t.Devices, func(d, e admit.Device) bool {
			return d.Name == e.Name && d.Count == e.Count && d.Prefer == e.Prefer && slices.Equal(d.Constraints, e.Constraints)
		})
	})
}
