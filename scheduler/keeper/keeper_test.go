// SPDX-License-Identifier: MPL-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger/files"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// world is a Nomad that remembers what ended for an hour, and one replica that keeps a
// ledger of it and can be killed.
type world struct {
	t      *testing.T
	dir    string
	start  time.Time
	now    time.Time
	index  uint64
	node   *nomad.Node
	allocs map[string]*nomad.Alloc // that hold something
	ended  map[string]*nomad.Alloc // all that ever did
	purged map[string]time.Time    // of which Nomad knows nothing, and when that was
	silent bool                    // Nomad cannot be asked

	replica *servicetest.Service
	store   *files.Store
	keeper  *Keeper
	refuse  bool // the disk takes nothing
}

const memory = time.Hour

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: tmpfs.Dir(t), node: servicetest.Machine("a", 2), index: 100,
		allocs: map[string]*nomad.Alloc{}, ended: map[string]*nomad.Alloc{}, purged: map[string]time.Time{}}
	w.now = time.Date(2026, 10, 5, 22, 0, 0, 0, time.UTC)
	w.start = w.now
	t.Cleanup(w.kill)
	return w
}

// boot starts a replica whose store answers.
func (w *world) boot() {
	w.t.Helper()
	w.begin()
	if !w.keeper.recall(w.t.Context()) {
		w.t.Fatal("nothing was recalled")
	}
}

// begin starts a replica: it is told what Nomad lists, as after a relist.
func (w *world) begin() {
	w.t.Helper()
	w.kill()
	var err error
	if w.store, err = files.Open(w.dir, files.Options{Keep: 90 * 24 * time.Hour, MaxBytes: 1 << 30, Now: func() time.Time { return w.now }, Trouble: func(err error) { w.t.Error(err) }}); err != nil {
		w.t.Fatal(err)
	}
	w.replica = servicetest.New(w.t, "queue \"q\" {\n gpus = 2\n namespaces = [\"default\"]\n}\n", w.node)
	w.replica.Clock.At = w.now
	w.replica.State.FollowTurnover()
	w.keeper = &Keeper{Store: disk{w.store, w}, State: w.replica.State, Past: w, Logger: hclog.NewNullLogger(), Sample: 30 * time.Second, Keep: 90 * 24 * time.Hour, Now: func() time.Time { return w.now }}
	for _, a := range w.allocs {
		w.tell(nomad.Change{Alloc: a})
	}
}

// kill ends the replica, whatever it is doing.
func (w *world) kill() {
	if w.store != nil {
		w.store.Close() //nolint:errcheck // what a killed process does not hear
	}
	w.store, w.replica, w.keeper = nil, nil, nil
}

func (w *world) tell(c nomad.Change) {
	if w.replica != nil {
		w.index++
		w.replica.State.Apply([]nomad.Change{c}, w.index)
	}
}

// pass lets time go by, with a look now and then.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(min(time.Minute, end.Sub(w.now)))
		w.round()
	}
}

func (w *world) round() {
	if w.replica == nil {
		return
	}
	w.replica.Clock.At = w.now
	w.replica.State.Heard()
	w.keeper.Round(w.t.Context())
}

func (w *world) run(id string, gpu, from, slices int) {
	d := nomad.TaskDevices{Task: "t", Group: fmt.Sprintf("nvidia/slice/T4/%d", gpu)}
	for i := range slices {
		d.IDs = append(d.IDs, servicetest.Instance("a", gpu, from+i))
	}
	a := &nomad.Alloc{Index: w.index, ID: id, Namespace: "default", Job: "job", Group: "g", NodeID: "id-a", NodeName: "a",
		Status: "running", Created: w.now, CPUMHz: 500, MemoryMiB: 256, Devices: []nomad.TaskDevices{d}}
	w.allocs[id] = a
	w.tell(nomad.Change{Alloc: a})
}

// finish ends an alloc. With a missed word the replica is only told that it is gone, as
// when the event stream broke.
func (w *world) finish(id string, missed bool) {
	a := *w.allocs[id]
	delete(w.allocs, id)
	a.Status, a.Ended = "complete", w.now
	w.ended[id] = &a
	if missed {
		w.tell(nomad.Change{AllocGone: id})
	} else {
		w.tell(nomad.Change{Alloc: &a})
	}
}

// purge has Nomad forget an alloc that runs.
func (w *world) purge(id string) {
	w.purged[id] = w.now
	delete(w.allocs, id)
	w.tell(nomad.Change{AllocGone: id})
}

// Ended is Nomad's list of what ended.
func (w *world) Ended(_ context.Context, each func([]*nomad.Alloc)) error {
	if w.silent {
		return errors.New("no answer")
	}
	var page []*nomad.Alloc
	for _, a := range w.ended {
		if w.now.Sub(a.Ended) < memory {
			page = append(page, a)
		}
	}
	each(page)
	return nil
}

// disk is the store, which refuses when it is full.
type disk struct {
	*files.Store
	w *world
}

func (d disk) Append(ctx context.Context, records []ledger.Record) error {
	if d.w.refuse {
		return errors.New("no space left on device")
	}
	return d.Store.Append(ctx, records)
}

// entries is what the ledger says of everything, by alloc.
func (w *world) entries() map[string]ledger.Entry {
	w.t.Helper()
	found := map[string]ledger.Entry{}
	f := ledger.NewFold(w.start.Add(-time.Hour), w.now, func(e *ledger.Entry) {
		if _, twice := found[e.Alloc]; twice {
			w.t.Errorf("%s is entered twice", e.Alloc)
		}
		found[e.Alloc] = *e
	})
	if err := w.store.Read(w.t.Context(), w.start.Add(-time.Hour), w.now, f.Add); err != nil {
		w.t.Fatal(err)
	}
	f.Close()
	return found
}

func (w *world) want(id string, from, to time.Time, why string) {
	w.t.Helper()
	if e := w.entries()[id]; !e.From.Equal(from) || !e.To.Equal(to) || e.Why != why {
		w.t.Errorf("%s from %s to %s, %q; want %s to %s, %q", id, e.From, e.To, e.Why, from, to, why)
	}
}

func TestWhatIsHeldIsEntered(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("a", 0, 0, 8)
	w.pass(90 * time.Second)
	w.finish("a", false)
	w.round()
	w.want("a", begin, begin.Add(90*time.Second), "complete")
	e := w.entries()["a"]
	if e.Task != "t" || e.Queue != "q" || e.Job != "job" || e.Node != "a" || e.GPU != "GPU-a-0" || e.Type != "T4" || e.Mode != "slice" || e.Milli != 500 || e.MemoryMiB != 8192 || e.AskedMilli != 500 || e.AskedMiB != 8192 {
		t.Errorf("got %+v", e)
	}
}

// An entry says since when its alloc was waited for, and the alloc's host resources.
func TestWhatWasWaitedForIsEntered(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	since := w.now
	key := nomad.JobKey{Namespace: "default", ID: "job"}
	w.tell(nomad.Change{Blocked: &nomad.Blocked{Index: 1, EvalID: "e", Key: key, Missing: map[string]int{"g": 1}, Since: since}})
	w.pass(10 * time.Minute)
	w.tell(nomad.Change{Unblocked: &key})
	w.run("a", 0, 0, 8)
	w.pass(time.Hour)
	w.run("b", 0, 8, 8)
	w.pass(time.Minute)
	a, b := w.entries()["a"], w.entries()["b"]
	if !a.Wanted.Equal(since) || a.Priority != 50 || a.HostMHz != 500 || a.HostMiB != 256 {
		t.Errorf("got %+v, want it to be wanted since %s", a, since)
	}
	if !b.Wanted.IsZero() {
		t.Errorf("nothing waited for it, and it was wanted since %s", b.Wanted)
	}
}

// What ends while no replica runs is learned from Nomad by the next, with its own time.
func TestWhatEndsWhileTheServiceIsAwayIsLearned(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("a", 0, 0, 8)
	w.pass(time.Minute)
	w.kill()
	w.pass(10 * time.Minute)
	w.finish("a", false)
	w.run("b", 0, 0, 8)
	w.pass(time.Minute)
	w.finish("b", false)
	w.pass(20 * time.Minute)
	for range 3 { // and once only, however often replicas come and go
		w.boot()
		w.round()
		w.want("a", begin, begin.Add(11*time.Minute), "complete")
		w.want("b", begin.Add(11*time.Minute), begin.Add(12*time.Minute), "complete")
	}
}

// What Nomad has forgotten counts until the service watched last.
func TestWhatNobodySawEndCountsUntilTheServiceWatched(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("a", 0, 0, 8)
	w.pass(21 * time.Minute)
	w.kill()
	w.pass(time.Minute)
	w.finish("a", false)
	w.pass(2 * memory)
	w.boot()
	w.round()
	w.want("a", begin, begin.Add(20*time.Minute), ledger.EndUnseen)
}

// A purged alloc ends when it is gone, and what the event stream lost has Nomad's time.
func TestAllocsThatLeaveWithoutAWord(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("purged", 0, 0, 8)
	w.run("missed", 1, 0, 8)
	w.pass(time.Minute)
	w.purge("purged")
	w.finish("missed", true)
	w.round()
	w.want("purged", begin, begin.Add(time.Minute), ledger.EndPurged)
	w.want("missed", begin, begin.Add(time.Minute), "complete")
}

// A disk that takes nothing for a while costs nothing.
func TestAFullDiskIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.refuse = true
	w.run("a", 0, 0, 8)
	w.pass(10 * time.Minute)
	w.finish("a", false)
	w.run("b", 0, 0, 8)
	w.pass(10 * time.Minute)
	if e := w.entries(); len(e) != 0 {
		t.Fatalf("a full disk took %+v", e)
	}
	w.refuse = false
	w.round()
	w.want("a", begin, begin.Add(10*time.Minute), "complete")
	w.want("b", begin.Add(10*time.Minute), w.now, "")
}

// A node whose GPUs are not listed when a replica starts, since its device plugin restarts,
// loses no entry.
func TestGPUsThatAreNotListedEndNothing(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	begin := w.now
	w.run("a", 0, 0, 8)
	w.pass(10 * time.Minute)
	whole := w.node
	w.node = servicetest.Machine("a", 0)
	w.boot()
	w.pass(10 * time.Minute)
	w.want("a", begin, w.now, "")
	again := *whole
	again.Index = 2
	w.tell(nomad.Change{Node: &again})
	w.pass(time.Minute)
	w.finish("a", false)
	w.round()
	w.want("a", begin, begin.Add(21*time.Minute), "complete")
}

// What is told to the metrics adds up to what is held, and what an earlier process told is
// not told again.
func TestHoldingsAreTallied(t *testing.T) {
	w := newWorld(t)
	held := time.Duration(0)
	boot := func() {
		w.boot()
		w.keeper.Tally = func(h *ledger.Hold, d time.Duration) {
			if h.Queue != "q" || h.Milli != 500 {
				t.Errorf("told of %+v", h)
			}
			held += d
		}
		w.round()
	}
	boot()
	w.run("a", 0, 0, 8)
	w.pass(10 * time.Minute)
	w.kill()
	w.pass(5 * time.Minute) // which is not told
	boot()
	w.pass(10 * time.Minute)
	w.finish("a", false)
	w.pass(time.Minute)
	if held != 20*time.Minute {
		t.Errorf("told of %s, want 20m", held)
	}
}

// What is measured of a task is sampled once per measurement, and what is measured of a GPU
// is the use of a task that has all of it.
func TestUseIsSampled(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	w.run("part", 0, 0, 8)
	w.run("whole", 1, 0, 16)
	for range 20 {
		at := w.now
		m := nomad.NewMeasurements()
		m.Tasks[servicetest.Instance("a", 0, 0)] = nomad.TaskUse{At: at, Milli: 120, MemoryMiB: 3000}
		g := m.GPUs["GPU-a-1"]
		g.At, g.Milli, g.MemoryMiB = at, 700, 9000
		m.GPUs["GPU-a-1"], m.GPUs["GPU-a-0"] = g, g
		w.replica.State.Measured("id-a", m)
		w.pass(2 * time.Minute) // looks twice at each
	}
	w.finish("part", false)
	w.round()
	e := w.entries()["part"]
	if e.Compute.Count() != 20 || e.Compute.Max() != 120 || e.Memory.Max() != 3000 {
		t.Errorf("part: %d samples, at most %d and %d", e.Compute.Count(), e.Compute.Max(), e.Memory.Max())
	}
	e = w.entries()["whole"] // its last few samples are not stored yet
	if e.Compute.Count() < 17 || e.Compute.Max() != 700 || e.Memory.Max() != 9000 {
		t.Errorf("whole: %d samples, at most %d and %d", e.Compute.Count(), e.Compute.Max(), e.Memory.Max())
	}
}

// Through random starts, ends, purges, kills in any moment, disks that are full and a Nomad
// that does not answer, every alloc has one entry, with its own times.
func TestRandomHistoriesAreEnteredOnce(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomHistory(t, seed) })
	}
}

func randomHistory(t *testing.T, seed uint64) {
	w, r := newWorld(t), rand.New(rand.NewPCG(seed, 17))
	w.boot()
	free := [2][2]string{} // halves of two GPUs
	began, over := map[string]time.Time{}, map[string]time.Time{}
	since := w.now // when all was well last
	for step := range 120 {
		switch g, h := r.IntN(2), r.IntN(2); r.IntN(9) {
		case 0, 1, 2:
			if id := free[g][h]; id == "" {
				free[g][h] = fmt.Sprintf("a%d", step)
				began[free[g][h]] = w.now
				w.run(free[g][h], g, 8*h, 8)
			} else {
				over[id], free[g][h] = w.now, ""
				w.finish(id, r.IntN(3) == 0)
			}
		case 3:
			if id := free[g][h]; id != "" && w.replica != nil {
				over[id], free[g][h] = w.now, ""
				w.round() // it has seen it
				w.purge(id)
			}
		case 4:
			w.kill()
		case 5:
			w.begin()
		case 6:
			w.refuse = r.IntN(2) == 0
		case 7:
			w.silent = r.IntN(2) == 0
		default:
		}
		if r.IntN(3) > 0 {
			w.pass(time.Duration(r.IntN(300)) * time.Second)
		}
		// No trouble lasts for as long as Nomad remembers.
		if well := w.replica != nil && !w.refuse && !w.silent; well {
			w.round()
			since = w.now
		} else if w.now.Sub(since) > memory/3 {
			w.refuse, w.silent = false, false
			w.boot()
			w.round()
			since = w.now
		}
	}
	w.refuse, w.silent = false, false
	if w.replica == nil {
		w.boot()
	}
	w.pass(time.Minute)
	found := w.entries()
	for id, from := range began {
		to, ended := over[id]
		if !ended {
			to = w.now
		}
		e, known := found[id]
		if !known && to.Equal(from) {
			continue // it was there for no time at all
		}
		purge := !w.purged[id].IsZero() && e.Why == ledger.EndUnseen && !e.To.After(to) // killed before it stored what it saw
		if !known && purge || !known && !w.purged[id].IsZero() {
			continue
		}
		if !known || !e.From.Equal(from) || !e.To.Equal(to) && !purge || e.Open == ended {
			t.Errorf("%s from %s to %s: the ledger has %s to %s, %q", id, from, to, e.From, e.To, e.Why)
		}
	}
	for id := range found {
		if _, real := began[id]; !real {
			t.Errorf("%s was never there", id)
		}
	}
}

// A replica hears of no alloc twice from itself: what is stored already is not stored again
// when Nomad is asked what ended.
func TestCatchingUpStoresNothingTwice(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.round()
	w.run("a", 0, 0, 8)
	w.pass(time.Minute)
	w.finish("a", false)
	w.round()
	w.boot()
	w.round()
	var kinds []ledger.Kind
	if err := w.store.Read(t.Context(), w.start, w.now, func(r *ledger.Record) {
		if r.Key.Alloc == "a" {
			kinds = append(kinds, r.Kind)
		}
	}); err != nil || fmt.Sprint(kinds) != "[hold end]" {
		t.Errorf("stored %v, %v", kinds, err)
	}
}
