package leader_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
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
}

func (s *slowStore) Put(ctx context.Context, item nomad.Item) (uint64, error) {
	s.mu.Lock()
	s.puts++
	s.mu.Unlock()
	if err := <-s.answers; err != nil {
		return 0, err
	}
	return s.Store.Put(ctx, item)
}

func (s *slowStore) wrote() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

func besides(t *testing.T, text string) (*servicetest.Service, *slowStore) {
	t.Helper()
	s := servicetest.New(t, text, servicetest.Machine("a", 2))
	slow := &slowStore{Store: s.Store, answers: make(chan error, 9)}
	s.UseStore(slow)
	s.Decider.Beside = true
	return s, slow
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

// The decision about a new job does not wait until it is recorded; whoever settles it does.
func TestANewJobIsRecordedBesideItsRegistration(t *testing.T) {
	s, slow := besides(t, "")
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false) // no write has an answer yet
	if err != nil || d[0].Hold != nil || len(s.AllAssumed()) != 1 {
		t.Fatal(d, err)
	}
	if known := s.Record(servicetest.KeyOf(a)); known == nil || known.Stored() {
		t.Errorf("known is %+v", known)
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.Settle(t.Context(), []admit.Ask{a}, d, true)
	}()
	select {
	case <-settled:
		t.Fatal("it is settled, and not recorded")
	case <-time.After(20 * time.Millisecond):
	}
	slow.answers <- nil
	<-settled
	if known := s.Record(servicetest.KeyOf(a)); !known.Stored() || known.Settled.IsZero() || !known.SameAs(storedOf(t, s, a)) {
		t.Errorf("known is %+v", known)
	}
	// What changes is recorded first, over what was recorded beside.
	a.Tasks[0].Request.Milli = 250
	slow.answers <- nil
	s.Submit(t, a)
	if known := s.Record(servicetest.KeyOf(a)); !known.SameAs(storedOf(t, s, a)) || slow.wrote() != 2 {
		t.Errorf("after %d writes known is %+v", slow.wrote(), known)
	}
}

// What Nomad refuses leaves nothing behind, whether or not it was recorded.
func TestARefusedJobLeavesNothing(t *testing.T) {
	for name, answer := range map[string]error{"it was recorded": nil, "it could not be recorded": errors.New("the disk is full")} {
		t.Run(name, func(t *testing.T) {
			s, slow := besides(t, "")
			slow.answers <- answer
			a := servicetest.Ask("job", "8G", 1)
			d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
			if err != nil {
				t.Fatal(err)
			}
			s.Settle(t.Context(), []admit.Ask{a}, d, false)
			if s.Record(servicetest.KeyOf(a)) != nil || storedOf(t, s, a).Stored() || len(s.AllAssumed()) > 0 {
				t.Errorf("left are %+v, %+v, %+v", s.Record(servicetest.KeyOf(a)), storedOf(t, s, a), s.AllAssumed())
			}
		})
	}
}

// Of a job that Nomad has and that could not be recorded the operator hears. From then on jobs
// are recorded before Nomad hears of them, until that works.
func TestWhatCannotBeRecordedIsTold(t *testing.T) {
	s, slow := besides(t, "")
	full := errors.New("the disk is full")
	slow.answers <- full
	a := servicetest.Ask("job", "4G", 1)
	s.Submit(t, a)
	said := ""
	for _, e := range s.Cluster(t).Events {
		said += e.Text + "\n"
	}
	if !strings.Contains(said, `record the decision about job "default/job", which Nomad has`) || !strings.Contains(said, full.Error()) {
		t.Errorf("it says %q", said)
	}
	if known := s.Record(servicetest.KeyOf(a)); known == nil || known.Stored() {
		t.Errorf("known is %+v", known)
	}
	slow.answers <- full
	if _, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("next", "4G", 1)}, false); !errors.Is(err, full) {
		t.Errorf("the next one: %v", err)
	}
	slow.answers <- nil
	s.Submit(t, servicetest.Ask("works", "4G", 1))
	d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("beside", "4G", 1)}, false)
	if err != nil || d[0].Hold != nil {
		t.Errorf("nothing is recorded beside any more: %v", err)
	}
	slow.answers <- nil
	s.Settle(t.Context(), []admit.Ask{servicetest.Ask("beside", "4G", 1)}, d, true)
}

// What another replica left of a job is written over.
func TestALeftoverIsWrittenOver(t *testing.T) {
	s, slow := besides(t, "")
	a := servicetest.Ask("job", "8G", 1)
	left := record.New(servicetest.KeyOf(a))
	if err := left.Write(t.Context(), s.Store); err != nil {
		t.Fatal(err)
	}
	slow.answers <- nil
	slow.answers <- nil
	s.Submit(t, a)
	if now := storedOf(t, s, a); len(now.Groups) != 1 || !s.Record(servicetest.KeyOf(a)).SameAs(now) {
		t.Errorf("stored is %+v", now)
	}
}

// A job that is purged before its record is written is not known again for it.
func TestAJobThatIsGoneMeanwhileStaysSo(t *testing.T) {
	s, slow := besides(t, "")
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	s.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(a)) })
	slow.answers <- nil
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	if known := s.Record(servicetest.KeyOf(a)); known != nil {
		t.Errorf("known is %+v", known)
	}
}

// What would be lost with the leader is recorded before Nomad hears of it.
func TestWhatMattersIsRecordedFirst(t *testing.T) {
	for name, change := range map[string]func(s *servicetest.Service, a *admit.Ask){
		"a gang":                       func(_ *servicetest.Service, a *admit.Ask) { a.Gang, a.Count = true, 2 },
		"a job that Nomad starts":      func(_ *servicetest.Service, a *admit.Ask) { a.JobType, a.Later = "batch", true },
		"a system job":                 func(_ *servicetest.Service, a *admit.Ask) { a.JobType = "system" },
		"a job that may fall back":     func(_ *servicetest.Service, a *admit.Ask) { a.FallbackAfter = 1 },
		"a job that waits":             func(s *servicetest.Service, a *admit.Ask) { s.Tenant(t, "other", 50, "a", 0, 0, 12) },
		"a job that is registered":     func(s *servicetest.Service, a *admit.Ask) { s.Show(*a, false) },
		"a job that was decided about": func(s *servicetest.Service, a *admit.Ask) { s.Submit(t, *a) },
		"another kind of service":      func(s *servicetest.Service, _ *admit.Ask) { s.Decider.Beside = false },
	} {
		t.Run(name, func(t *testing.T) {
			s, slow := besides(t, servicetest.OneGPU)
			slow.answers <- nil
			a := servicetest.Ask("job", "8G", 1)
			change(s, &a)
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
