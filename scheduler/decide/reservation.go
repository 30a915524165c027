package decide

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const reservationPrefix = "nomad-gpu/reservations/"

// Reservation is room that is kept free until a job claims it, somebody
// releases it, or its time is up.
type Reservation struct {
	Version   int         `json:"v"`
	ID        string      `json:"id"`
	Namespace string      `json:"namespace"`
	Owner     string      `json:"owner"` // who asked, for people
	Usage     place.Usage `json:"usage"`
	ExpiresAt time.Time   `json:"expires_at"`
	// ClaimedBy is the namespace/job that took it; empty until then.
	ClaimedBy string `json:"claimed_by,omitempty"`

	index uint64
}

// Reserve finds room for a want and keeps it until it is claimed, released or
// its time is up.
func (d *Decider) Reserve(ctx context.Context, w reserve.Want, dryRun bool) (view.Hold, error) {
	if !dryRun && !d.leading() {
		return view.Hold{}, fmt.Errorf("reserve %s: %w", w.Request, ErrNotLeading)
	}
	r := place.Request{ID: newID(), Namespace: w.Namespace, Queue: w.Queue, Priority: defaultPriority, Close: w.Close}
	r.Ask(w.Request)
	r.MinMemoryMiB = w.MinMemoryMiB
	claim, err := d.book.reserve(&r, w)
	if err != nil {
		return view.Hold{}, err
	}
	hold := d.book.hold(claim)
	if dryRun {
		d.book.release(claim.ID)
		hold.ID = ""
		return hold, nil
	}
	if claim.index, err = d.put(ctx, claim); err != nil {
		d.book.release(claim.ID)
		return view.Hold{}, err
	}
	return hold, nil
}

func newID() string { return "r-" + strings.ToLower(rand.Text()[:12]) }

// Held returns a reservation as it is now: a published picture may be older
// than the answer to whoever made it.
func (d *Decider) Held(id string) (view.Hold, error) {
	b := d.book
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.claims[id]
	if r == nil || !b.now().Before(r.ExpiresAt) {
		return view.Hold{}, fmt.Errorf("reservation %q: %w", id, reserve.ErrNotFound)
	}
	return b.shownHold(r), nil
}

// All lists the reservations as they are now, by ID.
func (d *Decider) All() []view.Hold {
	d.book.mu.Lock()
	defer d.book.mu.Unlock()
	return d.book.shownHolds()
}

func (b *Book) shownHolds() []view.Hold {
	list := []view.Hold{}
	for _, id := range slices.Sorted(maps.Keys(b.claims)) {
		if r := b.claims[id]; b.now().Before(r.ExpiresAt) {
			list = append(list, b.shownHold(r))
		}
	}
	return list
}

// Release gives a reservation back.
func (d *Decider) Release(ctx context.Context, id string) error {
	if !d.leading() {
		return fmt.Errorf("release reservation %q: %w", id, ErrNotLeading)
	}
	claim, ok := d.book.release(id)
	if !ok {
		return fmt.Errorf("release %q: %w", id, reserve.ErrNotFound)
	}
	return d.Forget(ctx, claim)
}

// Forget removes what is stored of a reservation that is over.
func (d *Decider) Forget(ctx context.Context, r Reservation) error {
	item, err := d.store.Get(ctx, reservationPrefix+r.ID)
	if err != nil || item.Index == 0 {
		return err
	}
	return d.store.Delete(ctx, item.Path, item.Index)
}

func (d *Decider) put(ctx context.Context, r *Reservation) (uint64, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("encode reservation %q: %w", r.ID, err)
	}
	return d.store.Put(ctx, nomad.Item{Path: reservationPrefix + r.ID, Index: r.index, Values: map[string]string{"reservation": string(text)}})
}

func (b *Book) reserve(r *place.Request, w reserve.Want) (*Reservation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ready(); err != nil {
		return nil, err
	}
	q, err := b.config.QueueFor(r.Namespace, r.Queue)
	if err != nil {
		return nil, forbidden("%s", err)
	}
	if err := b.resource(r, w.Request); err != nil {
		return nil, err
	}
	r.Queue = ""
	if q != nil {
		r.Queue = q.Name
	}
	if err := restrict(r, q); err != nil {
		return nil, err
	}
	if r.Models, err = allowed(r.Models, q); err != nil {
		return nil, err
	}
	if why := r.Fault(); why != "" {
		return nil, &admit.Refusal{Status: http.StatusBadRequest, Text: "the request is for " + why}
	}
	p, err := b.plan.Place(r)
	if errors.Is(err, place.ErrNoRoom) {
		return nil, b.noRoom(r, w)
	}
	var over *place.QuotaError
	if errors.As(err, &over) {
		return nil, forbidden("%s", over.Why)
	}
	if err != nil {
		return nil, err
	}
	p.Usage.Pinned = true
	claim := &Reservation{Version: RecordVersion, ID: r.ID, Namespace: r.Namespace, Owner: w.Owner, Usage: p.Usage, ExpiresAt: b.now().Add(w.For)}
	b.claims[r.ID] = claim
	b.book(claim.Usage)
	b.version++
	return claim, nil
}

// noRoom refuses a reservation: for now, or for good when no GPU could ever
// hold it.
func (b *Book) noRoom(r *place.Request, w reserve.Want) error {
	refusal := &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("there is no room for %s now", w.Request)}
	e, err := b.plan.Explain(r, b.now())
	if _, ever := b.ideal.Place(r); ever != nil {
		refusal.Status, refusal.Text = http.StatusUnprocessableEntity, fmt.Sprintf("no node can ever hold %s", w.Request)
		e, err = b.ideal.Explain(r, b.now())
	}
	if err != nil {
		return err
	}
	refusal.Details = append(reasons(e), rules(b.config.Queue(r.Queue))...)
	return refusal
}

func (b *Book) release(id string) (Reservation, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.claims[id]
	if r == nil {
		return Reservation{}, false
	}
	b.forgetClaim(id)
	return *r, true
}

func (b *Book) forgetClaim(id string) {
	b.unbook(id)
	delete(b.claims, id)
	b.version++
}

// openReservation takes the reservation that the ask claims off the books, so that
// its room and its charge count for the claim alone. The result puts it back,
// unless it was claimed meanwhile.
func (c *choosing) openReservation() func() {
	b := c.book
	r := b.claims[c.ask.Reservation]
	if r == nil || c.unreserved || r.Namespace != c.key.Namespace || r.ClaimedBy != "" {
		return func() {}
	}
	b.unbook(r.ID)
	return func() {
		if r.ClaimedBy == "" {
			b.book(r.Usage)
		}
	}
}

// claimable refuses a claim of what is not the job's to claim.
func (c *choosing) claimable() error {
	r := c.book.claims[c.ask.Reservation]
	switch {
	case r == nil:
		return c.refuseClaim("it does not exist or has expired")
	case r.Namespace != c.key.Namespace:
		return c.refuseClaim("it belongs to namespace %q", r.Namespace)
	case r.ClaimedBy != "" && r.ClaimedBy != c.key.String():
		return c.refuseClaim("job %s has claimed it", r.ClaimedBy)
	}
	return nil
}

func (c *choosing) refuseClaim(format string, args ...any) error {
	return &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("reservation %q: ", c.ask.Reservation) + fmt.Sprintf(format, args...)}
}

// claim places an alloc in the room of its reservation, which is open.
func (c *choosing) claim() (unit, error) {
	b := c.book
	if err := c.claimable(); err != nil {
		return unit{}, err
	}
	r := b.claims[c.ask.Reservation]
	parts := append([]part(nil), c.parts...)
	for i := range parts {
		parts[i].req.Nodes = []string{r.Usage.NodeID}
	}
	u, err := b.board(false).place(parts)
	if err != nil {
		return unit{}, c.refuseClaim("it does not hold what group %q asks for", c.ask.Group)
	}
	r.ClaimedBy = c.key.String()
	return u, nil
}

// claimedBy reports whether a job has claimed a reservation.
func (b *Book) claimedBy(key nomad.JobKey) bool {
	for _, r := range b.claims {
		if r.ClaimedBy == key.String() {
			return true
		}
	}
	return false
}

// unclaim takes a job's claim back.
func (b *Book) unclaim(key nomad.JobKey) {
	for _, r := range b.claims {
		if r.ClaimedBy == key.String() {
			r.ClaimedBy = ""
			b.book(r.Usage)
		}
	}
}

// hold is a reservation for people.
func (b *Book) hold(r *Reservation) view.Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shownHold(r)
}

func (b *Book) shownHold(r *Reservation) view.Hold {
	h := view.Hold{ID: r.ID, Namespace: r.Namespace, Queue: r.Usage.Queue, Owner: r.Owner, NodeID: r.Usage.NodeID, ExpiresAt: r.ExpiresAt, ClaimedBy: r.ClaimedBy, GPUs: []string{}}
	n := b.nodes[r.Usage.NodeID]
	if n == nil {
		return h
	}
	h.NodeName = n.Plan.Name
	for _, t := range r.Usage.Takes {
		h.GPUs = append(h.GPUs, n.Plan.GPUs[t.GPU].ID)
		h.Milli += t.Milli
	}
	h.MemoryMiB = b.snap.Charge(r.Usage.NodeID, r.Usage.Takes).MemoryMiB
	return h
}
