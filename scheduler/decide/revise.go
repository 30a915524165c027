package decide

import (
	"context"
	"fmt"
	"maps"
	"slices"

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
// just now. It returns nil when nothing is different; otherwise the change is
// recorded and must be settled like any decision.
func (d *Decider) Revise(ctx context.Context, asks []admit.Ask, r Revision) ([]admit.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	key := nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}
	if !d.leading() {
		return nil, fmt.Errorf("revise job %q: %w", key, ErrNotLeading)
	}
	have, err := readRecord(ctx, d.store, key)
	if err != nil {
		return nil, err
	}
	next, answers, err := d.book.revise(key, asks, have, r)
	if err != nil || answers == nil {
		return nil, err
	}
	if err := next.write(ctx, d.store); err != nil {
		return nil, err
	}
	d.book.remember(next)
	d.mu.Lock()
	d.before[key] = have
	d.mu.Unlock()
	return answers, nil
}

func (b *Book) revise(key nomad.JobKey, asks []admit.Ask, have *Record, r Revision) (*Record, []admit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := have.clone()
	next.At = b.now()
	answers := make([]admit.Decision, len(asks))
	changed := false
	for i := range asks {
		was, known := have.Groups[asks[i].Group]
		if !known || was.Key != asks[i].Key() {
			was = b.adopt(key, &asks[i])
		}
		g := was
		if asks[i].Group == r.Group {
			var err error
			if g, err = b.reviseGroup(key, &asks[i], was, r); err != nil {
				return nil, nil, err
			}
			changed = changed || !sameDecision(&was.Decision, &g.Decision) || !maps.Equal(was.Excluded, g.Excluded)
		}
		next.Groups[asks[i].Group] = g
		answers[i] = g.Decision
	}
	if !changed {
		return nil, nil, nil
	}
	b.version++
	return next, answers, nil
}

// adopt makes the record of a group that came around the service: nothing in
// it is changed.
func (b *Book) adopt(key nomad.JobKey, a *admit.Ask) GroupRecord {
	c := &choosing{book: b, key: key, ask: a}
	g := c.native()
	for _, alloc := range b.allocsOf(key) {
		if u := b.usages[alloc.NodeID][alloc.ID]; alloc.Group == a.Group && len(u.Takes) > 0 {
			g.Cost = b.snap.Charge(u.NodeID, u.Takes)
		}
	}
	for _, t := range a.Tasks {
		for _, d := range t.Devices {
			g.Blocks = append(g.Blocks, block{Name: d.Name, Count: d.Count})
		}
	}
	return g
}

func (b *Book) reviseGroup(key nomad.JobKey, a *admit.Ask, was GroupRecord, r Revision) (GroupRecord, error) {
	g := was
	g.Excluded = maps.Clone(was.Excluded)
	if g.Excluded == nil {
		g.Excluded = map[string]string{}
	}
	if r.Exclude != "" {
		g.Excluded[r.Exclude] = r.For
		g.Decision.Preferred = slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return id == r.Exclude })
	}
	for _, id := range r.Include {
		delete(g.Excluded, id)
	}
	if r.Prefer != "" {
		rest := slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return id == r.Prefer })
		g.Decision.Preferred, g.Decision.Hold = append([]string{r.Prefer}, rest...), nil
		if r.room != nil {
			b.moveIn(a, &g, r.room)
		}
	}
	if r.Hold != nil {
		g.Decision.Hold = r.Hold
		g.Shown.At, g.Shown.Outcome, g.Shown.Summary = b.now(), view.Held, "waits for "+r.Hold.Kind+": "+r.Hold.Sentence
		b.log.decision(g.Shown)
	}
	g.Decision.Candidates = b.candidates(&g)
	if !r.Retry {
		return g, nil
	}
	return b.retry(key, a, g)
}

// retry decides anew about a group that waits. Its device blocks are only
// written anew while nothing of it runs.
func (b *Book) retry(key nomad.JobKey, a *admit.Ask, was GroupRecord) (GroupRecord, error) {
	q, err := b.config.QueueFor(a.Namespace, a.Queue)
	if err != nil {
		return was, forbidden("group %q: %s", a.Group, err)
	}
	parts, err := b.parts(a, q)
	if err != nil {
		return was, err
	}
	if len(parts) == 0 { // Nomad alone can judge whether there is room
		was.Decision.Hold = nil
		return was, nil
	}
	c := &choosing{book: b, key: key, ask: a, queue: q, parts: parts}
	c.asBefore(&was)
	if err := c.shape(); err != nil {
		return was, err
	}
	before := b.flightsOf(key)
	b.dropGroupFlights(key, a.Group)
	g, err := c.fill(was, c.given(&was), b.live(key, a.Group))
	if err != nil {
		b.restore(key, before)
		return was, err
	}
	if was.Decision.Hold != nil && g.Decision.Hold == nil {
		b.log.decision(g.Shown)
		b.log.event(view.Event{At: b.now(), Kind: "release", Namespace: key.Namespace, JobID: key.ID, Text: fmt.Sprintf("group %s of job %s need not wait any more for %s", a.Group, key, was.Decision.Hold.Kind)})
	}
	return g, nil
}

func sameDecision(x, y *admit.Decision) bool {
	sameHold := x.Hold == nil && y.Hold == nil || x.Hold != nil && y.Hold != nil && *x.Hold == *y.Hold
	return sameHold && slices.Equal(x.Candidates, y.Candidates) && slices.Equal(x.Preferred, y.Preferred) && sameDevices(x.Tasks, y.Tasks)
}

func sameDevices(x, y []admit.TaskDecision) bool {
	return slices.EqualFunc(x, y, func(s, t admit.TaskDecision) bool {
		return s.Task == t.Task && s.Share == t.Share && slices.EqualFunc(s.Devices, t.Devices, func(d, e admit.Device) bool {
			return d.Name == e.Name && d.Count == e.Count && d.Prefer == e.Prefer && d.Pin == e.Pin && slices.Equal(d.Constraints, e.Constraints)
		})
	})
}
