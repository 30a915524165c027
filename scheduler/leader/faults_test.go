// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func want(t *testing.T, request string) reserve.Want {
	t.Helper()
	r, err := gpu.ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	return reserve.Want{Namespace: "default", Request: r, For: time.Minute}
}

// Whatever call to Nomad fails: it is told, nothing stays promised, and the next time
// it works.
func TestEveryFailureIsToldAndLeavesNothing(t *testing.T) {
	a := servicetest.Ask("job", "8G", 1)
	for name, row := range map[string]struct {
		before func(*servicetest.Service)
		do     func(ctx context.Context, s *servicetest.Service) error
	}{
		"decide": {nil, func(ctx context.Context, s *servicetest.Service) error {
			_, err := s.Decide(ctx, []admit.Ask{a}, false)
			return err
		}},
		"reserve": {nil, func(ctx context.Context, s *servicetest.Service) error {
			w, _ := gpu.ParseRequest("4G")
			_, err := s.Reserve(ctx, reserve.Want{Namespace: "default", Request: w, For: time.Minute}, false)
			return err
		}},
		"purge": {func(s *servicetest.Service) {
			s.Submit(t, a)
			s.Register(a)
			s.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: "job"}}}, 99)
			s.Pass(state.Unseen)
		}, func(ctx context.Context, s *servicetest.Service) error { return s.Purge(ctx) }},
		"expire": {func(s *servicetest.Service) {
			if _, err := s.Reserve(t.Context(), want(t, "4G"), false); err != nil {
				t.Fatal(err)
			}
			s.Pass(time.Minute)
		}, func(ctx context.Context, s *servicetest.Service) error { return s.Decider.Expire(ctx) }},
		"load": {nil, func(ctx context.Context, s *servicetest.Service) error { return s.Load(ctx) }},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 1
			for at := 0; at <= calls; at++ {
				s := servicetest.New(t, "", servicetest.Machine("a", 1))
				if row.before != nil {
					row.before(s)
				}
				f := &nomadtest.Faulty{Store: s.Store, FailAt: at}
				s.UseStore(f)
				err := row.do(t.Context(), s)
				if at == 0 {
					if calls = f.Calls; err != nil || calls == 0 {
						t.Fatal(calls, err)
					}
					continue
				}
				if !errors.Is(err, nomadtest.ErrFaulty) {
					t.Errorf("call %d of %d failed, and it said %v", at, calls, err)
				}
				if len(s.AllAssumed()) != 0 || len(s.All()) != 0 {
					t.Errorf("call %d of %d failed, and %v, %v are kept", at, calls, s.AllAssumed(), s.All())
				}
			}
		})
	}
}

// A revision that cannot be recorded is told; so is a decision that Nomad refused and
// that cannot be taken back.
func TestFailuresOfRevisions(t *testing.T) {
	for at := 1; at <= 2; at++ {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		a := servicetest.Ask("job", "8G", 1)
		d := s.Submit(t, a)
		s.Register(a)
		before := len(s.Cluster(t).Events)
		s.UseStore(&nomadtest.Faulty{Store: s.Store, FailAt: at})
		hold := decide.Revision{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: "so"}}
		if got, err := s.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, hold); !errors.Is(err, nomadtest.ErrFaulty) || got != nil {
			t.Errorf("call %d: %+v, %v", at, got, err)
		}
		if s.Record(servicetest.KeyOf(a)).Groups["g"].Decision.Hold != nil {
			t.Errorf("call %d: what is not recorded is believed", at)
		}
		s.UseStore(&nomadtest.Faulty{Store: s.Store, FailAt: at + 1}) // the decision is one call, taking it back another
		other := servicetest.Ask("job", "4G", 1)
		d2, err := s.Decide(t.Context(), []admit.Ask{other}, false)
		if err != nil {
			t.Fatal(err)
		}
		s.Settle(t.Context(), []admit.Ask{other}, d2, false)
		events := s.Cluster(t).Events
		if told := len(events) > before && strings.Contains(events[0].Text, "take back the decision"); told != (at == 1) {
			t.Errorf("call %d: told %v", at+1, events)
		}
		if known := s.Record(servicetest.KeyOf(a)); known == nil || !known.SameAs(storedOf(t, s, a)) {
			t.Errorf("call %d: known is %+v", at+1, known)
		}
	}
}

// What a follower may not do it does not do.
func TestAFollowerDecidesNothing(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	f := leader.New(s.State, s.Store, func() bool { return false })
	a := servicetest.Ask("job", "8G", 1)
	_, decideErr := f.Decide(t.Context(), []admit.Ask{a}, false)
	_, reviseErr := f.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Retry: true})
	_, reserveErr := f.Reserve(t.Context(), want(t, "4G"), false)
	for name, err := range map[string]error{"decide": decideErr, "revise": reviseErr, "reserve": reserveErr, "release": f.Release(t.Context(), "r")} {
		if !errors.Is(err, leader.ErrNotLeading) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if h, err := f.Reserve(t.Context(), want(t, "4G"), true); err != nil || h.NodeName != "a" || h.ID != "" {
		t.Errorf("a dry run: %+v, %v", h, err)
	}
	if len(s.AllAssumed()) != 0 || len(s.Store.Items) != 0 || len(s.All()) != 0 {
		t.Error("something is left")
	}
	// One that ceases to lead in the middle promises nothing.
	asked := 0
	f = leader.New(s.State, s.Store, func() bool { asked++; return asked == 1 })
	if _, err := f.Decide(t.Context(), []admit.Ask{a}, false); !errors.Is(err, leader.ErrNotLeading) || len(s.AllAssumed()) != 0 || len(s.Store.Items) != 0 {
		t.Errorf("%v; %v", err, s.AllAssumed())
	}
}

// A reservation is there from its answer until it is released, and nowhere after.
func TestReservationsLast(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	h, err := s.Reserve(t.Context(), want(t, "4G"), false)
	if err != nil || h.NodeName != "a" || h.MemoryMiB != 4096 || len(h.GPUs) != 1 || len(s.Store.Items) != 1 {
		t.Fatalf("got %+v, %v", h, err)
	}
	if got, err := s.Held(h.ID); err != nil || got.ID != h.ID || got.NodeName != "a" {
		t.Errorf("held %+v, %v", got, err)
	}
	for range 2 {
		err := s.Release(t.Context(), h.ID)
		if _, held := s.Held(h.ID); !errors.Is(held, reserve.ErrNotFound) || len(s.Store.Items) != 0 {
			t.Errorf("still held: %v", held)
		}
		if h.Owner == "again" && !errors.Is(err, reserve.ErrNotFound) || h.Owner != "again" && err != nil {
			t.Errorf("released: %v", err)
		}
		h.Owner = "again"
	}
	if h, err = s.Reserve(t.Context(), want(t, "4G"), false); err != nil {
		t.Fatal(err)
	}
	s.Pass(time.Minute)
	if err := s.Decider.Expire(t.Context()); err != nil || len(s.Store.Items) != 0 || len(s.All()) != 0 {
		t.Errorf("expired: %v, %v", s.All(), err)
	}
}

// A claim that Nomad refused is free for others; one that it took is the job's.
func TestClaimsAreSettled(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		h, err := s.Reserve(t.Context(), want(t, "12G"), false)
		if err != nil {
			t.Fatal(err)
		}
		a := servicetest.Ask("job", "8G", 1)
		a.Reservation = h.ID
		d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
		if err != nil {
			t.Fatal(err)
		}
		s.Settle(t.Context(), []admit.Ask{a}, d, accepted)
		list := s.All()
		if len(list) != 1 || (list[0].ClaimedBy == "default/job") != accepted {
			t.Errorf("accepted %v: %+v", accepted, list)
		}
		if _, stored := s.Store.Items["nomad-gpu/reservations/"+h.ID]; stored == accepted {
			t.Errorf("accepted %v: stored %v", accepted, stored)
		}
	}
}

// A first decision that Nomad refused leaves no record; nothing is written for a job
// that was not decided about.
func TestARefusedFirstDecisionLeavesNothing(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	before := s.Cluster(t).Index
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil || s.Record(servicetest.KeyOf(a)) == nil {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, false)
	if s.Record(servicetest.KeyOf(a)) != nil || len(s.Store.Items) != 0 || len(s.AllAssumed()) != 0 {
		t.Errorf("%v, %v are left", s.Store.Items, s.AllAssumed())
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, false)
	s.Settle(t.Context(), nil, nil, true)
	if d, err := s.Decide(t.Context(), nil, false); d != nil || err != nil {
		t.Errorf("nothing was asked: %v, %v", d, err)
	}
	if d, err := s.Revise(t.Context(), nil, decide.Revision{}); d != nil || err != nil {
		t.Errorf("nothing was asked: %v, %v", d, err)
	}
	if c := s.Cluster(t); len(c.Decisions) != 0 || c.Index != before {
		t.Errorf("what Nomad refused is shown: %+v", c.Decisions)
	}
}

// Another policy needs another planner, which learns what the cluster was asked for.
func TestConfigure(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	s.Submit(t, servicetest.Ask("job", "1G", 1))
	c, err := config.Parse("test.hcl", []byte("placement {\n policy = \"SPREAD\"\n}\nqueue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}"))
	if err != nil {
		t.Fatal(err)
	}
	first := servicetest.Ask("first", "1G", 1)
	s.Submit(t, first)
	s.Register(first)
	s.Run(first, "alloc", "a", 0, 0, 8)
	s.Configure(c)
	if d := s.Submit(t, servicetest.Ask("spread", "1G", 1)); len(d.Preferred) != 1 || d.Preferred[0] != "id-b" {
		t.Errorf("goes to %v", d.Preferred)
	}
	if d := s.Submit(t, servicetest.Ask("much", "12G", 1)); d.Hold == nil || !strings.Contains(d.Hold.Sentence, "queue q holds") {
		t.Errorf("got %+v", d.Hold)
	}
}
