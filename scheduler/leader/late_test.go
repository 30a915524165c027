// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// slowStore holds each write up until it is told what is to become of it: nil, it is done.
type slowStore struct {
	*nomadtest.Store
	answers chan error
	mu      sync.Mutex
	puts    int
	broken  error // what each write fails with at once
}

func (s *slowStore) Put(ctx context.Context, item nomad.Item) (uint64, error) {
	s.mu.Lock()
	s.puts++
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return 0, broken
	}
	select {
	case err := <-s.answers:
		if err != nil {
			return 0, err
		}
		return s.Store.Put(ctx, item)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *slowStore) breaks(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

func (s *slowStore) wrote() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

func recordingLate(t *testing.T, text string) (*servicetest.Service, *slowStore) {
	t.Helper()
	s := servicetest.New(t, text, servicetest.Machine("a", 2))
	slow := &slowStore{Store: s.Store, answers: make(chan error, 9)}
	s.UseStore(slow)
	s.Decider.Late = true
	return s, slow
}

// finished waits until all is recorded.
func finished(t *testing.T, s *servicetest.Service) {
	t.Helper()
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// storedOf is what is stored of a job.
func storedOf(t *testing.T, s *servicetest.Service, a admit.Ask) *record.Record {
	t.Helper()
	r, err := record.Read(t.Context(), s.Store, servicetest.KeyOf(a))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A new job is recorded after Nomad has it: the submitter does not wait for that, the next decision about it does.
func TestANewJobIsRecordedAfterNomadHasIt(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	d := s.Submit(t, a) // no write has an answer yet
	if known := s.Record(servicetest.KeyOf(a)); d.Hold != nil || known == nil || known.Stored() || known.Settled.IsZero() || len(s.AllAssumed()) != 1 {
		t.Errorf("known is %+v", known)
	}
	hurried, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Finish(hurried); !errors.Is(err, context.Canceled) {
		t.Errorf("it is said to be recorded: %v", err)
	}
	if _, err := s.Decide(hurried, []admit.Ask{a}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("the next decision did not wait: %v", err)
	}
	if _, err := s.Revise(hurried, []admit.Ask{a}, decide.Revision{Group: "g"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a revision did not wait: %v", err)
	}
	slow.answers <- nil
	finished(t, s)
	if known := s.Record(servicetest.KeyOf(a)); !known.Stored() || known.Settled.IsZero() || !known.SameAs(storedOf(t, s, a)) {
		t.Errorf("known is %+v", known)
	}
	// What changes is recorded first, over that.
	a.Tasks[0].Request.Milli = 250
	slow.answers <- nil
	s.Submit(t, a)
	if known := s.Record(servicetest.KeyOf(a)); !known.SameAs(storedOf(t, s, a)) || slow.wrote() != 2 {
		t.Errorf("after %d writes known is %+v", slow.wrote(), known)
	}
}

// What Nomad refuses was never recorded, and leaves nothing behind.
func TestARefusedJobLeavesNothing(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, false)
	finished(t, s)
	if s.Record(servicetest.KeyOf(a)) != nil || slow.wrote() > 0 || len(s.AllAssumed()) > 0 {
		t.Errorf("left are %+v, %+v, after %d writes", s.Record(servicetest.KeyOf(a)), s.AllAssumed(), slow.wrote())
	}
}

// Of a job that Nomad has and that could not be recorded for twenty seconds the operator hears. From the
// first failure on, jobs are recorded before Nomad hears of them, until that works.
func TestWhatCannotBeRecordedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slow := recordingLate(t, "")
		full := errors.New("the disk is full")
		slow.breaks(full)
		a := servicetest.Ask("job", "4G", 1)
		s.Submit(t, a)
		synctest.Wait() // it was tried once
		if _, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("next", "4G", 1)}, false); !errors.Is(err, full) {
			t.Errorf("the next one: %v", err)
		}
		finished(t, s)
		if said := events(t, s); !strings.Contains(said, `record the decision about job "default/job", which Nomad has`) || !strings.Contains(said, full.Error()) {
			t.Errorf("it says %q", said)
		}
		if known := s.Record(servicetest.KeyOf(a)); known == nil || known.Stored() || slow.wrote() < 5 {
			t.Errorf("after %d writes known is %+v", slow.wrote(), known)
		}
		slow.breaks(nil)
		slow.answers <- nil
		s.Submit(t, servicetest.Ask("works", "4G", 1))
		s.Submit(t, servicetest.Ask("late", "4G", 1)) // no write has an answer
		slow.answers <- nil
		finished(t, s)
		if len(s.AllAssumed()) != 3 || !s.Record(nomad.JobKey{Namespace: "default", ID: "late"}).Stored() {
			t.Errorf("promised is %+v", s.AllAssumed())
		}
	})
}

// events are what people are told.
func events(t *testing.T, s *servicetest.Service) (said string) {
	t.Helper()
	for _, e := range s.Cluster(t).Events {
		said += e.Text + "\n"
	}
	return said
}

// One failure does not lose a record: it is tried again.
func TestARecordIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slow := recordingLate(t, "")
		slow.answers <- errors.New("no leader")
		slow.answers <- nil
		a := servicetest.Ask("job", "4G", 1)
		s.Submit(t, a)
		finished(t, s)
		if !s.Record(servicetest.KeyOf(a)).Stored() || events(t, s) != "" {
			t.Errorf("known is %+v: %s", s.Record(servicetest.KeyOf(a)), events(t, s))
		}
	})
}

// What is recorded first and given up by its client says nothing of whether records can be written.
func TestAClientThatLeavesSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slow := recordingLate(t, "")
		client, leave := context.WithCancel(t.Context())
		gang := servicetest.Ask("gang", "4G", 2)
		gang.Gang = true
		answered := make(chan error, 1)
		go func() {
			_, err := s.Decide(client, []admit.Ask{gang}, false)
			answered <- err
		}()
		synctest.Wait() // it is being written
		leave()
		if err := <-answered; !errors.Is(err, context.Canceled) || slow.wrote() != 1 {
			t.Fatalf("after %d writes: %v", slow.wrote(), err)
		}
		s.Submit(t, servicetest.Ask("late", "4G", 1)) // no write has an answer
		slow.answers <- nil
		finished(t, s)
	})
}

// Only so many records may be on their way: what more is decided is recorded first.
func TestSoManyRecordsMayBeLate(t *testing.T) {
	s, slow := recordingLate(t, "")
	for i := range 64 {
		s.Submit(t, servicetest.Ask(fmt.Sprintf("late-%d", i), "1G", 0))
	}
	impatient, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := s.Decide(impatient, []admit.Ask{servicetest.Ask("one-more", "1G", 0)}, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more: %v", err)
	}
	close(slow.answers) // all are written
	finished(t, s)
}

// A leader that stops waits for what Nomad has not answered yet, and records it before another
// leads. What it decides from then on is recorded first, which it may not do.
func TestALeaderThatStopsRecordsWhatItAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		leading := atomic.Bool{}
		leading.Store(true)
		s.Decider = leader.New(s.State, s.Store, leading.Load)
		s.Decider.Late = true
		a := servicetest.Ask("job", "8G", 1)
		d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
		if err != nil {
			t.Fatal(err)
		}
		leading.Store(false)
		done := make(chan error, 1)
		go func() { done <- s.Finish(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it stopped before Nomad had answered: %v", err)
		default:
		}
		s.Settle(t.Context(), []admit.Ask{a}, d, true)
		if err := <-done; err != nil || !storedOf(t, s, a).Stored() {
			t.Errorf("stored is %+v, %v", storedOf(t, s, a), err)
		}
	})
}

// What was decided about the job since is not written over, nor taken back.
func TestALateRecordYieldsToANewerOne(t *testing.T) {
	for name, accepted := range map[string]bool{"Nomad takes the job at last": true, "Nomad refuses it at last": false} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			s.Decider.Late = true
			a := servicetest.Ask("job", "8G", 1)
			d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
			if err != nil {
				t.Fatal(err)
			}
			s.Register(a)
			newer := s.Record(servicetest.KeyOf(a)).Clone()
			newer.At = newer.At.Add(time.Minute)
			if err := newer.Write(t.Context(), s.Store); err != nil {
				t.Fatal(err)
			}
			s.State.Do(func(tx *state.Tx) { tx.Keep(newer) })
			s.Settle(t.Context(), []admit.Ask{a}, d, accepted)
			finished(t, s)
			if now := storedOf(t, s, a); !now.At.Equal(newer.At) || s.Record(servicetest.KeyOf(a)) == nil {
				t.Errorf("stored is %+v", now)
			}
		})
	}
}

// A record that is being written is not purged yet.
func TestWhatIsBeingWrittenIsPurgedLater(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	key := servicetest.KeyOf(a)
	s.State.Apply([]nomad.Change{{JobGone: &key}}, 99)
	s.Pass(state.Unseen)
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow.answers <- nil
	finished(t, s)
	if err := s.Purge(t.Context()); err != nil || storedOf(t, s, a).Stored() {
		t.Errorf("stored is %+v, %v", storedOf(t, s, a), err)
	}
}

// What another replica left of a job is written over by the one that leads, and by no other.
func TestALeftoverIsWrittenOver(t *testing.T) {
	for name, leads := range map[string]bool{"it leads": true, "it does not lead any more": false} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			leading := true
			s.Decider = leader.New(s.State, s.Store, func() bool { return leading })
			s.Decider.Late = true
			a := servicetest.Ask("job", "8G", 1)
			d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
			left := record.New(servicetest.KeyOf(a))
			if err := errors.Join(err, left.Write(t.Context(), s.Store)); err != nil {
				t.Fatal(err)
			}
			leading = leads
			s.Settle(t.Context(), []admit.Ask{a}, d, true)
			finished(t, s)
			if now := storedOf(t, s, a); len(now.Groups) == 1 != leads {
				t.Errorf("stored is %+v", now)
			}
		})
	}
}

// Who does not lead any more records what it admitted, where no other replica has.
func TestWhoStopsLeadingRecordsWhatItAdmitted(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	leading := true
	s.Decider = leader.New(s.State, s.Store, func() bool { return leading })
	s.Decider.Late = true
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	leading = false
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	finished(t, s)
	if now := storedOf(t, s, a); len(now.Groups) != 1 {
		t.Errorf("stored is %+v", now)
	}
}

// A job that is purged before its record is written is not known again for it.
func TestAJobThatIsGoneMeanwhileStaysSo(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	s.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(a)) })
	slow.answers <- nil
	finished(t, s)
	if known := s.Record(servicetest.KeyOf(a)); known != nil {
		t.Errorf("known is %+v", known)
	}
}

// The next leader takes a job whose record was never written for one that came around the
// service: it runs on, and counts for its queue.
func TestAJobWithoutARecordCountsForTheNextLeader(t *testing.T) {
	s, slow := recordingLate(t, servicetest.OneGPU)
	a := servicetest.Ask("job", "12G", 1)
	d := s.Submit(t, a) // which is never recorded: it dies
	defer finished(t, s)
	defer close(slow.answers)
	next := servicetest.After(t, s, time.Second, servicetest.OneGPU, servicetest.Machine("a", 2))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	next.RegisterAs(a, servicetest.WasOf(d))
	next.Run(a, "alloc", "a", 0, 0, 12)
	more, err := next.Decide(t.Context(), []admit.Ask{servicetest.Ask("more", "8G", 1)}, true)
	if err != nil || more[0].Hold == nil || more[0].Hold.Kind != "quota" {
		t.Errorf("another is decided as %+v, %v", more, err)
	}
}

// What would be lost with the leader is recorded before Nomad hears of it.
func TestWhatMattersIsRecordedFirst(t *testing.T) {
	for name, change := range map[string]func(s *servicetest.Service, a *admit.Ask){
		"a gang":                   func(_ *servicetest.Service, a *admit.Ask) { a.Gang, a.Count = true, 2 },
		"a job that Nomad starts":  func(_ *servicetest.Service, a *admit.Ask) { a.JobType, a.Later = "batch", true },
		"a system job":             func(_ *servicetest.Service, a *admit.Ask) { a.JobType = "system" },
		"a job that may fall back": func(_ *servicetest.Service, a *admit.Ask) { a.FallbackAfter = 1 },
		"a job that waits":         func(s *servicetest.Service, a *admit.Ask) { s.Tenant(t, "other", 50, "a", 0, 0, 12) },
		"a job that is registered": func(s *servicetest.Service, a *admit.Ask) { s.Show(*a, false) },
		"a job that says much": func(_ *servicetest.Service, a *admit.Ask) {
			a.Datacenters = append(a.Datacenters, strings.Repeat("x", 60<<10))
		},
		"a job that was decided about": func(s *servicetest.Service, a *admit.Ask) { s.Submit(t, *a) },
		"another kind of service":      func(s *servicetest.Service, _ *admit.Ask) { s.Decider.Late = false },
	} {
		t.Run(name, func(t *testing.T) {
			s, slow := recordingLate(t, servicetest.OneGPU)
			slow.answers <- nil
			a := servicetest.Ask("job", "8G", 1)
			change(s, &a)
			finished(t, s)
			before := slow.wrote()
			for len(slow.answers) > 0 {
				<-slow.answers
			}
			full := errors.New("the disk is full")
			slow.answers <- full
			if _, err := s.Decide(t.Context(), []admit.Ask{a}, false); !errors.Is(err, full) || slow.wrote() != before+1 {
				t.Errorf("%d writes, %v", slow.wrote()-before, err)
			}
		})
	}
}
