// SPDX-License-Identifier: MPL-2.0

package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Cluster is everything that is known. The caller adds what the state does not know:
// who leads.
func Cluster(r *state.Reader) (*view.Cluster, error) {
	if r.Cluster.Synced().IsZero() {
		return nil, r.Cluster.Ready()
	}
	c := &view.Cluster{
		At: r.Now(), Index: r.Cluster.Index(), Synced: r.Cluster.Synced(), DryRun: r.Config().Preemption.DryRun,
		MinRunS: int64(r.Config().Preemption.MinRunTime.Seconds()),
		Nodes:   []view.Node{}, Pending: pending(r), OnCPU: onCPU(r), Returning: returning(r), Holds: Reservations(r),
	}
	c.Decisions, c.Events = r.Queue.Past()
	holders := holders(r)
	for _, id := range r.Cluster.NodeIDs() {
		c.Nodes = append(c.Nodes, node(r, id, holders[id]))
	}
	slices.SortFunc(c.Nodes, func(x, y view.Node) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.ID, y.ID))
	})
	c.Queues = queues(r, c.Pending)
	return c, nil
}

func queues(r *state.Reader, pending []view.Pending) []view.Queue {
	configured := r.Config().Queues
	list := make([]view.Queue, 0, len(configured))
	for i := range configured {
		q := &configured[i]
		v := view.Queue{Name: q.Name, Parent: q.Parent, Namespaces: q.Namespaces, QuotaMilli: q.QuotaMilli, QuotaMemoryMiB: q.QuotaMemoryMiB}
		v.AllowNamespaces, v.Models, v.MaxPriority = q.AllowNamespaces, q.Models, q.MaxPriority
		v.MinRunS = int64(r.Config().Preemption.MinRunTime.Seconds())
		if q.MinRunTime != nil {
			v.MinRunS = int64(q.MinRunTime.Seconds())
		}
		v.MaxMilli, v.MaxMemoryMiB = q.Limit()
		used, borrowed := r.Queue.Used(q.Name)
		var held place.Charge
		for _, u := range r.Queue.HoldersIn(q.Name, func(nomad.JobKey) bool { return true }) {
			charge := r.Capacity.Charge(u.NodeID, u.Takes)
			held = held.Plus(charge)
			if r.Queue.Direct(r.Cluster.Alloc(u.ID).Key()) {
				v.DirectMilli += charge.Milli
			}
		}
		v.UsedMilli, v.UsedMemoryMiB = held.Milli, held.MemoryMiB
		v.PromisedMilli = max(0, used.Milli-held.Milli)
		v.BorrowedMilli, v.BorrowedMemoryMiB = borrowed.Milli, borrowed.MemoryMiB
		v.OwedMilli = r.Queue.Owed(q.Name, nomad.JobKey{}).Milli
		v.Above = above(r, q.Name)
		for _, p := range pending {
			if p.Queue == q.Name {
				v.Pending++
			}
		}
		list = append(list, v)
	}
	return list
}

// above says that a queue is above its limit, and what of that cannot be brought back.
func above(r *state.Reader, queue string) string {
	if !r.Queue.Exceeds(queue) {
		return ""
	}
	var dispatched, direct place.Charge
	for _, u := range r.Queue.HoldersIn(queue, func(nomad.JobKey) bool { return true }) {
		switch key := r.Cluster.Alloc(u.ID).Key(); {
		case r.Cluster.Unchangeable(key):
			dispatched = dispatched.Plus(r.Capacity.Charge(u.NodeID, u.Takes))
		case r.Queue.Direct(key) && !r.Config().Preemption.HoldDirect:
			direct = direct.Plus(r.Capacity.Charge(u.NodeID, u.Takes))
		}
	}
	text := r.Queue.OverQuota(queue, place.Charge{})
	if dispatched != (place.Charge{}) {
		text += fmt.Sprintf("; %s of it are held by dispatched jobs, which Nomad does not let be changed: stop them, or dispatch through the service", dispatched)
	}
	if direct != (place.Charge{}) {
		text += fmt.Sprintf("; %s of it are held by jobs that came around the service: preemption { hold_direct_jobs = true } has them wait", direct)
	}
	return text
}

// pending lists what waits, in the order in which it is tried.
func pending(r *state.Reader) []view.Pending {
	list := []view.Pending{}
	for w := range r.Queue.Waiting() {
		list = append(list, waiting(r, w))
	}
	return list
}

func waiting(r *state.Reader, w *state.Waiting) view.Pending {
	p := view.Pending{
		Namespace: w.Job.Namespace, JobID: w.Job.ID, Group: w.Group, Missing: w.Missing, Milli: w.Asks().Milli, Queue: w.Turn.Queue, Priority: w.Turn.Priority,
		Since: w.Turn.Since, Ask: r.Cluster.Job(w.Job).Group(w.Group).Text(), Kind: view.WaitsForRoom, Reason: "no node has room now", Direct: r.Queue.Direct(w.Job),
	}
	told := r.Queue.Told(w.Job, w.Group)
	p.Note = note(r, w, &told)
	lack := told.Lack
	switch {
	case lack.Never:
		p.Reason = lack.Text
	case lack.Text != "":
		p.Reason += "; " + lack.Text
	}
	if p.Direct && !lack.Never {
		p.Reason += "; Nomad alone places it, since it came around the service"
	}
	if told.Start != nil && !lack.Never {
		p.Start = told.Start.Shown()
		p.Start.ShorterUntil = w.Turn.ShorterUntil()
	}
	p.Fits = told.Fits
	known := r.Queue.Record(w.Job)
	if known == nil {
		return p
	}
	g := known.Groups[w.Group]
	switch {
	case g.Decision.Hold != nil:
		p.Kind, p.Reason = g.Decision.Hold.Kind, explained(g.Decision.Hold.Sentence, &g)
		if p.Kind == view.WaitsForRoom && lack.Text != "" {
			p.Reason += "; " + lack.Text
		}
	case g.Shown.Summary != "" && len(g.Assumed) == 0 && !lack.Never:
		p.Reason = explained(g.Shown.Summary, &g)
		if lack.Text != "" {
			p.Reason += "; " + lack.Text
		}
	}
	if g.Shown.Ask != "" {
		p.Ask = g.Shown.Ask
	}
	return p
}

// returning lists what failed and Nomad starts again by itself.
func returning(r *state.Reader) []view.Returning {
	list := []view.Returning{}
	for _, w := range r.Queue.Returning() {
		if w.Missing == 0 {
			continue // what takes its place is there, or waits for room
		}
		g := view.Returning{
			Namespace: w.Job.Namespace, JobID: w.Job.ID, Group: w.Group, Allocs: w.Missing, Milli: w.Asks().Milli, Queue: w.Turn.Queue,
			Since: w.Turn.Since, Ask: r.Cluster.Job(w.Job).Group(w.Group).Text(), Text: "Nomad starts it again when the delay of its reschedule block is over",
		}
		if g.Queue != "" {
			g.Text += fmt.Sprintf("; until then queue %s keeps %s for it", g.Queue, w.Asks())
		}
		list = append(list, g)
	}
	slices.SortFunc(list, func(x, y view.Returning) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.JobID, y.JobID), strings.Compare(x.Group, y.Group))
	})
	return list
}

// onCPU lists what fell back and is still registered so.
func onCPU(r *state.Reader) []view.FellBack {
	list := []view.FellBack{}
	for _, key := range r.Queue.Recorded(state.Recorded) {
		j := r.Cluster.Job(key)
		if j == nil || j.Stopped {
			continue
		}
		known := r.Queue.Record(key)
		for _, name := range slices.Sorted(maps.Keys(known.Groups)) {
			g := known.Groups[name]
			if again := j.Group(name); g.FellBack.IsZero() || again != nil && again.GPU() {
				continue
			}
			list = append(list, view.FellBack{Namespace: key.Namespace, JobID: key.ID, Group: name, Ask: g.Ask.String(), Since: g.FellBack, Text: g.Shown.Summary})
		}
	}
	return list
}

// note says what was tried for a group in vain, and what cannot be.
func note(r *state.Reader, w *state.Waiting, told *state.Told) string {
	var list []string
	held := false
	if known := r.Queue.Record(w.Job); known != nil {
		g := known.Groups[w.Group]
		held = g.Decision.Hold != nil
		if g.InVain() != "" {
			list = append(list, g.InVain())
		}
	}
	if told.Futile {
		list = append(list, "no eviction that is allowed would make room")
	}
	if r.Capacity.WasIdle(w.Job) {
		list = append(list, "it was evicted because it did not use its GPUs: for an hour nothing is evicted to bring it back")
	}
	if told.Unmoved != "" {
		list = append(list, told.Unmoved)
	}
	if told.Uncut != "" {
		list = append(list, told.Uncut)
	}
	if r.Cluster.Unchangeable(w.Job) {
		list = append(list, "it was dispatched, and Nomad does not let it be changed: when it starts is up to Nomad")
	}
	switch again := r.Queue.Repeats(w.Job); {
	case held || again.May():
	case again.Waited:
		list = append(list, fmt.Sprintf("%d of the job's allocs have completed, and Nomad would run them again if anything was changed for those that wait, which the queue cannot pay for: %s", again.Allocs, again.Above))
	default:
		list = append(list, fmt.Sprintf("%d of the job's allocs have completed, and Nomad would run them again if anything was changed for those that wait: nothing is, before those have waited for %s", again.Allocs, again.Time.Round(time.Second)))
	}
	return strings.Join(list, "; ")
}

// explained is why a group waits: the short of it, and what was explained beside.
func explained(short string, g *record.Group) string {
	lines := slices.DeleteFunc(slices.Clone(g.Decision.Explanation), func(line string) bool { return line == g.Shown.Summary })
	return strings.Join(append([]string{short}, lines...), "; ")
}

// Reservations lists what is kept free, by ID.
func Reservations(r *state.Reader) []view.Hold {
	list := []view.Hold{}
	for _, one := range r.Capacity.Reservations() {
		if r.Now().Before(one.ExpiresAt) {
			list = append(list, Reservation(r, one))
		}
	}
	return list
}

// Reservation is what is kept free under one ID.
func Reservation(r *state.Reader, of *record.Reservation) view.Hold {
	h := view.Hold{
		ID: of.ID, Namespace: of.Namespace, Queue: of.Usage.Queue, Owner: of.Owner, NodeID: of.Usage.NodeID,
		ExpiresAt: of.ExpiresAt, ClaimedBy: of.ClaimedBy, GPUs: []string{},
	}
	n := r.Cluster.Node(of.Usage.NodeID)
	if n == nil {
		return h
	}
	h.NodeName = n.Plan.Name
	for _, t := range of.Usage.Takes {
		h.GPUs = append(h.GPUs, n.Plan.GPUs[t.GPU].ID)
		h.Milli += t.Milli
	}
	h.MemoryMiB = r.Capacity.Charge(of.Usage.NodeID, of.Usage.Takes).MemoryMiB
	return h
}
