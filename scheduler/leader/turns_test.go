// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace/tracetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// decided has an ask decided about, and not settled yet.
func decided(t *testing.T, s *servicetest.Service, a admit.Ask) admit.Decision {
	t.Helper()
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	return d[0]
}

// lost removes what is stored of all decisions, as an operator who deletes Variables.
func lost(s *servicetest.Service) {
	for path := range s.Store.Items {
		delete(s.Store.Items, path)
	}
}

// A replica that finds a Variable otherwise than it left it reads it and decides anew: what
// another wrote counts; of what was deleted, what it remembers of a job that Nomad has.
func TestWhatIsStoredOtherwiseIsReadAgain(t *testing.T) {
	for name, row := range map[string]struct {
		registered bool
		prepare    func(t *testing.T, second *servicetest.Service)
		same       bool // the answer is that of before
	}{
		"another wrote it": {true, func(*testing.T, *servicetest.Service) {}, true},
		"it was deleted": {true, func(t *testing.T, second *servicetest.Service) {
			if err := second.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			lost(second)
		}, true},
		"it was deleted, and the job is gone": {false, func(t *testing.T, second *servicetest.Service) {
			if err := second.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			lost(second)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			first := servicetest.New(t, "", servicetest.Machine("a", 2))
			first.Tenant(t, "on-a", 50, "a", 0, 0, 8)
			a := servicetest.Ask("job", "4G", 1)
			before := first.Submit(t, a)
			first.Submit(t, servicetest.Ask("whole", "1", 1)) // so that whole GPUs are worth something
			second := servicetest.After(t, first, time.Hour, "", servicetest.Machine("a", 2))
			if row.registered {
				second.Register(a)
			}
			row.prepare(t, second)
			// Now the other GPU would be better.
			second.Run(servicetest.Ask("other", "9G", 1), "alloc-other", "a", 1, 0, 9)
			if row.registered {
				second.Run(a, "alloc", "a", 0, 8, 4)
			}
			after := decided(t, second, a)
			if got := reflect.DeepEqual(before.Tasks, after.Tasks); got != row.same {
				t.Errorf("before %+v\nafter  %+v", before, after)
			}
			if stored, err := record.Read(t.Context(), second.Store, servicetest.KeyOf(a)); err != nil || !stored.Stored() || !stored.SameAs(second.Record(servicetest.KeyOf(a))) {
				t.Errorf("stored is %+v, %v", stored, err)
			}
		})
	}
}

// What cannot be read again is told, and nothing stays promised.
func TestAConflictThatCannotBeReadIsTold(t *testing.T) {
	first := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "4G", 1)
	first.Submit(t, a)
	second := servicetest.After(t, first, time.Minute, "", servicetest.Machine("a", 1))
	second.UseStore(&nomadtest.Faulty{Store: second.Store, FailAt: 2}) // the first is the conflict
	if d, err := second.Decide(t.Context(), []admit.Ask{a}, false); !errors.Is(err, nomadtest.ErrFaulty) || d != nil || len(second.AllAssumed()) != 0 {
		t.Errorf("got %+v, %v; %v", d, err, second.AllAssumed())
	}
}

// A replica that does not lead answers dry runs by what is stored: it has not followed what
// the leader decides.
func TestAFollowerReadsWhatIsStored(t *testing.T) {
	first := servicetest.New(t, "", servicetest.Machine("a", 2))
	first.Tenant(t, "on-a", 50, "a", 0, 0, 8)
	a := servicetest.Ask("job", "4G", 1)
	before := first.Submit(t, a)
	second := servicetest.After(t, first, time.Minute, "", servicetest.Machine("a", 2))
	second.Register(a)
	second.Run(a, "alloc", "a", 0, 8, 4)
	second.Run(servicetest.Ask("other", "9G", 1), "alloc-other", "a", 1, 0, 9)
	follower := leader.New(second.State, second.Store, func() bool { return false })
	d, err := follower.Decide(t.Context(), []admit.Ask{a}, true)
	if err != nil || !reflect.DeepEqual(d[0].Tasks, before.Tasks) {
		t.Errorf("got %+v, %v; want %+v", d, err, before.Tasks)
	}
	follower = leader.New(second.State, &nomadtest.Faulty{Store: second.Store, FailAt: 1}, func() bool { return false })
	if d, err := follower.Decide(t.Context(), []admit.Ask{a}, true); !errors.Is(err, nomadtest.ErrFaulty) || d != nil {
		t.Errorf("what cannot be read: %+v, %v", d, err)
	}
}

// What a replica remembers of a job counts where its record is lost and Nomad has the job: a record
// alone says nothing, and a job alone is decided about anew.
func TestWhatIsRememberedOfALostRecord(t *testing.T) {
	for name, row := range map[string]struct{ recorded, registered, same bool }{
		"a record and a job": {true, true, true}, "a record alone": {true, false, false}, "a job alone": {false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			tenant := servicetest.Ask("on-a", "8G", 1)
			s.Run(tenant, "alloc-on-a", "a", 0, 0, 8)
			a := servicetest.Ask("job", "4G", 1)
			if row.recorded {
				s.Submit(t, a)
			}
			if row.registered {
				s.Show(a, row.recorded)
			}
			lost(s)
			s.End("alloc-on-a")
			s.Run(servicetest.Ask("other", "9G", 1), "alloc-other", "a", 1, 0, 9) // now that GPU is the better one
			follower := leader.New(s.State, s.Store, func() bool { return false })
			d, err := follower.Decide(t.Context(), []admit.Ask{a}, true)
			if err != nil {
				t.Fatal(err)
			}
			if prefers := d[0].Tasks[0].Devices[0].Prefer; (prefers == "T4/0") != row.same {
				t.Errorf("it prefers %s", prefers)
			}
		})
	}
}

// Whatever is decided or taken back is news for people, and what is tried dry is not.
func TestDecisionsAreNews(t *testing.T) {
	for name, late := range map[string]bool{"recorded first": false, "recorded late": true} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			s.Decider.Late = late
			asks := []admit.Ask{servicetest.Ask("job", "8G", 1)}
			version := func() (v uint64) {
				s.State.View(func(r *state.Reader) { v = r.Version() })
				return v
			}
			for _, step := range []struct {
				name string
				do   func() error
				news bool
			}{
				{"a dry run", func() error { _, err := s.Decide(t.Context(), asks, true); return err }, false},
				{"a decision", func() error { _, err := s.Decide(t.Context(), asks, false); return err }, true},
				{"a refusal", func() error { s.Settle(t.Context(), asks, nil, false); return nil }, true},
				{"nothing", func() error { s.Settle(t.Context(), asks, nil, false); return nil }, false},
			} {
				before := version()
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				if news := version() > before; news != step.news {
					t.Errorf("%s: news %v", step.name, news)
				}
			}
		})
	}
}

// watched is a store that is looked at while it is written, and cannot be.
type watched struct {
	*nomadtest.Store
	look func()
}

func (w watched) Put(context.Context, nomad.Item) (uint64, error) {
	w.look()
	return 0, nomadtest.ErrFaulty
}

// What a decision promises is news while it is being recorded, and that it is gone where it could not
// be recorded is news again.
func TestAPromiseThatEndsIsNews(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	look := func() (version uint64, promised int) {
		s.State.View(func(r *state.Reader) { version, promised = r.Version(), len(r.Capacity.AllAssumed()) })
		return version, promised
	}
	before, _ := look()
	var during uint64
	s.UseStore(watched{s.Store, func() {
		promised := 0
		if during, promised = look(); during <= before || promised != 1 {
			t.Errorf("meanwhile %d are promised, as of version %d after %d", promised, during, before)
		}
	}})
	if _, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "8G", 1)}, false); !errors.Is(err, nomadtest.ErrFaulty) {
		t.Fatal(err)
	}
	if after, promised := look(); during == 0 || after <= during || promised != 0 {
		t.Errorf("then %d are promised, as of version %d after %d", promised, after, during)
	}
}

// A decision is settled once: what was accepted is not taken back by a late refusal, nor is
// what was taken back.
func TestADecisionIsSettledOnce(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	s.Settle(t.Context(), []admit.Ask{a}, nil, false)
	key := servicetest.KeyOf(a)
	if s.Record(key) == nil || len(s.AllAssumed()) != 1 || len(s.Store.Items) != 1 {
		t.Fatalf("what Nomad took was taken back: %v", s.AllAssumed())
	}
	s.Register(a)
	changed := servicetest.Ask("job", "4G", 1)
	decided(t, s, changed)
	for i := range 2 {
		s.Settle(t.Context(), []admit.Ask{changed}, nil, false)
		stored, err := record.Read(t.Context(), s.Store, key)
		if g := stored.Groups["g"]; err != nil || g.Ask.Tasks[0].Request.String() != "8G" || g.Key != a.Key() || !stored.SameAs(s.Record(key)) {
			t.Errorf("settled %d times, and stored is %+v, %v", i+1, stored, err)
		}
		for _, item := range s.Store.Items {
			if item.Index != 3 { // decided, decided anew, taken back
				t.Errorf("settled %d times, and written up to index %d", i+1, item.Index)
			}
		}
	}
	if len(s.AllAssumed()) != 0 {
		t.Errorf("what was refused is still promised: %v", s.AllAssumed())
	}
}

// A record that another replica has written meanwhile is not written over by what is taken
// back; that is told.
func TestTakingBackWritesOverNobody(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	s.Register(a)
	changed := servicetest.Ask("job", "4G", 1)
	decided(t, s, changed)
	other, err := record.Read(t.Context(), s.Store, servicetest.KeyOf(a))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Write(t.Context(), s.Store); err != nil {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{changed}, nil, false)
	stored, err := record.Read(t.Context(), s.Store, servicetest.KeyOf(a))
	if err != nil || !stored.SameAs(other) || stored.Groups["g"].Key != changed.Key() {
		t.Errorf("stored is %+v, %v", stored, err)
	}
	if e := s.Cluster(t).Events; len(e) != 1 || e[0].Kind != "error" || !strings.Contains(e[0].Text, nomad.ErrConflict.Error()) {
		t.Errorf("told is %+v", e)
	}
}

// Reservations that a job did not claim stay, whatever it says; of several groups each claim
// is consumed. One that cannot be removed is told of.
func TestOnlyClaimsAreConsumed(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	var ids []string
	for range 3 {
		h, err := s.Reserve(t.Context(), want(t, "4G"), false)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, h.ID)
	}
	asks := make([]admit.Ask, 3)
	for i := range asks {
		asks[i] = servicetest.Ask("job", "4G", 1)
		asks[i].Group = fmt.Sprint("g", i)
	}
	asks[0].Reservation, asks[2].Reservation = ids[0], ids[1]
	d, err := s.Decide(t.Context(), asks, false)
	if err != nil {
		t.Fatal(err)
	}
	asks[1].Reservation = ids[2] // which it has not claimed
	stored := func() (held []bool) {
		for _, id := range ids {
			_, is := s.Store.Items["nomad-gpu/reservations/"+id]
			held = append(held, is)
		}
		return held
	}
	s.UseStore(&nomadtest.Faulty{Store: s.Store, FailAt: 1})
	s.Settle(t.Context(), asks, d, true)
	if e := s.Cluster(t).Events; len(e) != 1 || e[0].Kind != "error" {
		t.Errorf("told is %+v", e)
	}
	if got := stored(); !reflect.DeepEqual(got, []bool{true, false, true}) {
		t.Errorf("stored are %v", got)
	}
}

// A job that was refused gives its claim back: another may take it.
func TestARefusedClaimIsFree(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	h, err := s.Reserve(t.Context(), want(t, "12G"), false)
	if err != nil {
		t.Fatal(err)
	}
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	again := a
	again.Reservation, again.Tasks = h.ID, servicetest.Ask("job", "12G", 1).Tasks
	d, err := s.Decide(t.Context(), []admit.Ask{again}, false)
	if err == nil {
		s.Settle(t.Context(), []admit.Ask{again}, d, false)
	}
	if list := s.All(); len(list) != 1 || list[0].ClaimedBy != "" {
		t.Errorf("after %v: %+v", err, list)
	}
}

// A revision that changes nothing writes nothing; one of the record alone is written and
// settled at once; one of the job is taken back when Nomad refuses it.
func TestRevisionsAreRecorded(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	a := servicetest.Ask("job", "8G", 1)
	d := s.Submit(t, a)
	s.Register(a)
	key := servicetest.KeyOf(a)
	index := func() (at uint64) {
		for _, item := range s.Store.Items {
			at = item.Index
		}
		return at
	}
	was := index()
	if got, err := s.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, decide.Revision{Group: "g"}); got != nil || err != nil || index() != was {
		t.Errorf("nothing to do: %+v, %v, written up to %d", got, err, index())
	}
	s.LetTimePass()
	kept := servicetest.Reread(a, d)
	kept.Count = 2 // known to Nomad already
	kept.Was.Tasks = d.Tasks
	if got, err := s.Revise(t.Context(), []admit.Ask{kept}, decide.Revision{Group: "g", Align: true}); got != nil || err != nil || index() != was+1 {
		t.Fatalf("the record alone: %+v, %v, written up to %d of %d", got, err, index(), was)
	}
	if known := s.Record(key); known.Groups["g"].Ask.Count != 2 || !known.Settled.Equal(s.Clock.At) {
		t.Errorf("the record alone: %+v", known)
	}
	hold := decide.Revision{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: "so"}}
	held, err := s.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, hold)
	if err != nil || len(held) != 1 || held[0].Hold == nil || s.Record(key).Groups["g"].Decision.Hold == nil {
		t.Fatalf("held: %+v, %v", held, err)
	}
	s.Settle(t.Context(), []admit.Ask{a}, held, false)
	if g := s.Record(key).Groups["g"]; g.Decision.Hold != nil || g.Ask.Count != 2 {
		t.Errorf("taken back: %+v", g)
	}
}

// What is asked of a queue that is gone cannot be revised, and nothing is written.
func TestAFailedRevisionWritesNothing(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	d := s.Submit(t, a)
	s.Register(a)
	before := s.Record(servicetest.KeyOf(a))
	a.Queue = "gone"
	if got, err := s.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, decide.Revision{Group: "g", Retry: true}); err == nil || got != nil || s.Record(servicetest.KeyOf(a)) != before {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A dry run of a reservation by the leader keeps nothing; an ID names one that is held, alone.
func TestReservationsHaveNames(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	if h, err := s.Reserve(t.Context(), want(t, "4G"), true); err != nil || h.ID != "" || h.NodeName != "a" || len(s.All()) != 0 || len(s.Store.Items) != 0 {
		t.Errorf("a dry run: %+v, %v", h, err)
	}
	one, err := s.Reserve(t.Context(), want(t, "4G"), false)
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Reserve(t.Context(), want(t, "8G"), false)
	if err != nil || one.ID == two.ID || one.ID != strings.ToLower(one.ID) || !strings.HasPrefix(one.ID, "r-") {
		t.Fatalf("got %q and %q, %v", one.ID, two.ID, err)
	}
	if h, err := s.Held(two.ID); err != nil || h.MemoryMiB != 8<<10 {
		t.Errorf("got %+v, %v", h, err)
	}
	if err := s.Release(t.Context(), one.ID); err != nil || len(s.All()) != 1 || s.All()[0].ID != two.ID {
		t.Errorf("left is %+v, %v", s.All(), err)
	}
}

// failing is a store from which nothing is deleted any more after so many.
type failing struct {
	*nomadtest.Store
	left int
}

func (f *failing) Delete(ctx context.Context, path string, index uint64) error {
	if f.left--; f.left < 0 {
		return nomadtest.ErrFaulty
	}
	return f.Store.Delete(ctx, path, index)
}

// How many of what expired are left is told.
func TestHowManyAreLeftIsTold(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	for range 3 {
		if _, err := s.Reserve(t.Context(), want(t, "4G"), false); err != nil {
			t.Fatal(err)
		}
	}
	s.Pass(time.Minute)
	s.UseStore(&failing{s.Store, 1})
	if err := s.Decider.Expire(t.Context()); !errors.Is(err, nomadtest.ErrFaulty) || !strings.Contains(err.Error(), "2 of 3") || len(s.Store.Items) != 2 {
		t.Errorf("got %v; %d are stored", err, len(s.Store.Items))
	}
}

// The records of all jobs that left are deleted, also behind one of which nothing is stored.
func TestWhatLeftIsForgotten(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	for i, id := range []string{"one", "two", "three"} {
		a := servicetest.Ask(id, "1G", 1)
		s.Submit(t, a)
		if i == 0 {
			lost(s)
		}
		s.Register(a)
	}
	stays := servicetest.Ask("stays", "1G", 1)
	s.Submit(t, stays)
	s.Register(stays)
	for _, id := range []string{"one", "two", "three"} {
		s.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: id}}}, 99)
	}
	s.Pass(state.Unseen)
	if err := s.Purge(t.Context()); err != nil || len(s.Store.Items) != 1 || s.Record(servicetest.KeyOf(stays)) == nil {
		t.Errorf("%d are stored, %v", len(s.Store.Items), err)
	}
}

// What was done and could not be stored is stored the next time.
func TestWhatCouldNotBeStoredIsStoredLater(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.State.Do(func(tx *state.Tx) { tx.Note(view.Event{Kind: "hold", JobID: "job"}) })
	good := s.Store
	s.UseStore(&nomadtest.Faulty{Store: good, FailAt: 1})
	if err := s.Save(t.Context()); !errors.Is(err, nomadtest.ErrFaulty) {
		t.Fatalf("got %v", err)
	}
	s.UseStore(good)
	for range 2 {
		if err := s.Save(t.Context()); err != nil || len(good.Items) != 2 {
			t.Errorf("%d are stored, %v", len(good.Items), err)
		}
	}
	for _, item := range good.Items {
		if item.Index > 2 {
			t.Errorf("written up to index %d", item.Index)
		}
	}
}

// A new leader guesses what comes by what was asked for before it.
func TestANewLeaderLearnsWhatWasAskedFor(t *testing.T) {
	cost := func(load bool) int64 {
		old := servicetest.New(t, "", servicetest.Machine("a", 4))
		a := servicetest.Ask("large", "4", 1)
		old.Submit(t, a)
		next := servicetest.After(t, old, time.Hour/2, "", servicetest.Machine("a", 4))
		if load {
			if err := next.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		probe := servicetest.Ask("probe", "4G", 1)
		next.Submit(t, probe)
		return next.Record(servicetest.KeyOf(probe)).Groups["g"].Shown.Choices[0].LostMilli
	}
	if guess, learned := cost(false), cost(true); learned <= guess {
		t.Errorf("4G costs %d where nothing is known and %d where all asked for four GPUs", guess, learned)
	}
}

// Decisions about different jobs are made and settled at once.
func TestDecisionsAtOnce(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 8))
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for turn := range 12 {
				asks := []admit.Ask{servicetest.Ask(fmt.Sprint("job-", worker, "-", turn), "1G", 1)}
				d, err := s.Decide(t.Context(), asks, false)
				if err != nil {
					t.Error(err)
				}
				s.Settle(t.Context(), asks, d, turn%2 == 0)
			}
		})
	}
	all.Wait()
	if n, stored := len(s.AllAssumed()), len(s.Store.Items); n != 4*6 || stored != n {
		t.Errorf("%d are promised and %d stored", n, stored)
	}
}

// What is refused after its job has left stays away.
func TestNothingIsTakenBackOfAJobThatLeft(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	s.Register(a)
	changed := servicetest.Ask("job", "4G", 1)
	decided(t, s, changed)
	key := servicetest.KeyOf(a)
	s.State.Apply([]nomad.Change{{JobGone: &key}}, 99)
	s.Pass(state.Unseen)
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{changed}, nil, false)
	if s.Record(key) != nil || len(s.Store.Items) != 0 || len(s.AllAssumed()) != 0 || len(s.Cluster(t).Events) != 0 {
		t.Errorf("left are %+v, %v", s.Record(key), s.Store.Items)
	}
}

// A decision that is traced leads to what follows it; another names no trace.
func TestATracedDecisionIsRecordedWithItsTrace(t *testing.T) {
	tracer, err := trace.New(t.Context(), trace.Config{Endpoint: tracetest.Start(t).URL, Ratio: 1, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracer.Close)
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	if got := s.Record(servicetest.KeyOf(a)).Trace; got != (record.Trace{}) {
		t.Errorf("an untraced one names %+v", got)
	}
	ctx, span := tracer.Begin(t.Context(), trace.Decide)
	defer span.End()
	s.Pass(time.Minute)
	if _, err := s.Decide(ctx, []admit.Ask{a}, false); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Record(servicetest.KeyOf(a)).Trace, (record.Trace{Parent: trace.Parent(ctx), At: s.Clock.At}); got != want || want.Parent == "" {
		t.Errorf("it names %+v, want %+v", got, want)
	}
}
