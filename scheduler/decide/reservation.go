// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// reservedAway is the hold of a group that finds no room, and would if no job
// had reserved any. Nomad knows of no reservation: without the hold it would
// start the group in the reserved room. Nil when that is not the reason.
func reservedAway(tx *state.Tx, g *record.Group) *admit.Hold {
	kept, until := unclaimed(tx)
	need := blocks.NeedOf(tx, g)
	if len(kept) == 0 || tx.Capacity.RoomFor(need).AnyNow(nil) {
		return nil
	}
	var hold *admit.Hold
	var soonest time.Time
	isUnclaimed := func(u *place.Usage) bool { return kept[u.ID] }
	for _, id := range slices.Sorted(maps.Keys(until)) {
		if hold != nil && !until[id].Before(soonest) || !tx.Capacity.ServesNow(id, need, isUnclaimed) {
			continue
		}
		soonest = until[id]
		hold = &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("the room on %s is reserved until %s", tx.Cluster.Node(id).Plan.Name, soonest.UTC().Format(time.RFC3339))}
	}
	return hold
}

// unclaimed are the reservations that no job has claimed, by ID, and when the last of them on each node expires.
func unclaimed(tx *state.Tx) (ids map[string]bool, until map[string]time.Time) {
	ids, until = map[string]bool{}, map[string]time.Time{}
	for _, r := range tx.Capacity.Reservations() {
		if r.ClaimedBy != "" {
			continue
		}
		ids[r.ID] = true
		if node := r.Usage.NodeID; r.ExpiresAt.After(until[node]) {
			until[node] = r.ExpiresAt
		}
	}
	return ids, until
}

// Reservation finds room for a want. Nothing is kept free yet. A refusal names what there
// would be room for now.
func Reservation(tx *state.Tx, w reserve.Want, id string) (*record.Reservation, error) {
	found, r, err := reservation(tx, w, id)
	if errors.Is(err, place.ErrNoRoom) {
		err = noRoom(tx, r, w)
	}
	var refusal *admit.Refusal
	if errors.As(err, &refusal) && r != nil {
		if f := reservable(tx, w); f != nil {
			err = reserve.NewInstead(refusal, *f)
		}
	}
	return found, err
}

// reservation is Reservation without the reasons for a lack of room: place.ErrNoRoom. The
// request is nil where the want is not one that any room could serve.
func reservation(tx *state.Tx, w reserve.Want, id string) (*record.Reservation, *place.Request, error) {
	r := &place.Request{ID: id, Namespace: w.Namespace, Priority: state.DefaultPriority, Close: w.Close}
	r.Ask(w.Request)
	r.MinMemoryMiB = w.MinMemoryMiB
	if err := tx.Cluster.Ready(); err != nil {
		return nil, nil, err
	}
	q, err := tx.Config().QueueFor(w.Namespace, w.Queue)
	if err != nil {
		return nil, nil, admit.Forbidden("%s", err)
	}
	if q != nil {
		r.Queue = q.Name
	}
	if err := blocks.Bind(tx, r, w.Request, q); err != nil {
		return nil, nil, err
	}
	if why := r.Fault(); why != "" {
		return nil, nil, &admit.Refusal{Status: http.StatusBadRequest, Text: "the request is for " + why}
	}
	p, err := tx.Planner().Place(r)
	var over *place.QuotaError
	if errors.As(err, &over) {
		return nil, r, admit.Forbidden("%s", over.Why)
	}
	if err != nil {
		return nil, r, err
	}
	if owed, why := tx.Queue.OverWithOwed(r.Queue, tx.Capacity.Charge(p.NodeID, p.Usage.Takes), nomad.JobKey{}); why != "" {
		return nil, r, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("%s of the quota of queue %s are for %s", owed, r.Queue, owedWork)}
	}
	p.Usage.Pinned = true
	return &record.Reservation{Version: record.Version, ID: r.ID, Namespace: r.Namespace, Owner: w.Owner, Usage: p.Usage, ExpiresAt: tx.Now().Add(w.For)}, r, nil
}

// reservable is the largest part of the request that there is room and quota for now;
// nil where there is neither for any.
func reservable(tx *state.Tx, w reserve.Want) *view.Fits {
	for _, s := range scalesOf(&admit.TaskAsk{Request: w.Request}) {
		find := func(n int) (*place.Request, error) {
			less := w
			less.Request = s.ask(n).Request
			_, r, err := reservation(tx, less, "")
			return r, err
		}
		n := sort.Search(s.sizes, func(i int) bool { _, err := find(i + 1); return err != nil })
		if n == 0 {
			continue
		}
		r, _ := find(n)
		e, err := tx.Planner().Explain(r, tx.Now())
		if err != nil {
			return nil
		}
		return &view.Fits{Ask: s.ask(n).String(), Allocs: 1, Nodes: e.Fits}
	}
	return nil
}

// noRoom refuses a reservation: for now, or for good when no GPU could ever
// hold it.
func noRoom(tx *state.Tx, r *place.Request, w reserve.Want) error {
	refusal := &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("there is no room for %s now", w.Request)}
	e, err := tx.Planner().Explain(r, tx.Now())
	if _, ever := tx.IdlePlanner().Place(r); ever != nil {
		refusal.Status, refusal.Text = http.StatusUnprocessableEntity, fmt.Sprintf("no node can ever hold %s", w.Request)
		e, err = tx.IdlePlanner().Explain(r, tx.Now())
	}
	if err != nil {
		return err
	}
	refusal.Details = append(reasons(e), rules(tx.Config().Queue(r.Queue))...)
	return refusal
}

// openReservation takes the reservation that an ask claims off the books, so that
// its room and its charge count for the claim alone. The result puts it back,
// unless it was claimed meanwhile.
func openReservation(tx *state.Tx, key nomad.JobKey, id string) func() {
	r := tx.Capacity.Reservation(id)
	if r == nil || r.Namespace != key.Namespace || r.ClaimedBy != "" {
		return func() {}
	}
	return tx.Open(r)
}

// claimable refuses a claim of a reservation that is not the job's.
func claimable(tx *state.Tx, key nomad.JobKey, id string) error {
	r := tx.Capacity.Reservation(id)
	switch {
	case r == nil:
		return refuseClaim(id, "it does not exist or has expired")
	case r.Namespace != key.Namespace:
		return refuseClaim(id, "it belongs to namespace %q", r.Namespace)
	case r.ClaimedBy != "" && r.ClaimedBy != key.String():
		return refuseClaim(id, "job %s has claimed it", r.ClaimedBy)
	}
	return nil
}

func refuseClaim(id, format string, args ...any) error {
	return &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("reservation %q: ", id) + fmt.Sprintf(format, args...)}
}

// claim places an alloc in the room of its reservation, which is open.
func claim(a groupAsk) (blocks.Placed, error) {
	id := a.ask.Reservation
	if err := claimable(a.tx, a.key, id); err != nil {
		return blocks.Placed{}, err
	}
	node := []string{a.tx.Capacity.Reservation(id).Usage.NodeID}
	u, err := blocks.Cluster(a.tx).Place(a.on(func([]string) []string { return node }).parts)
	if err != nil {
		return blocks.Placed{}, refuseClaim(id, "it does not hold what group %q asks for", a.ask.Group)
	}
	a.tx.Claim(id, a.key)
	return u, nil
}
