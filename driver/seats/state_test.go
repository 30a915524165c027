// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// scripted is a host on which a task's processes are in one state until they are asked to
// be in another, where they can be.
type scripted struct {
	stubborn
	states []gpu.CheckpointState
	asked  []gpu.CheckpointAction
	// fails are the actions that fail.
	fails map[gpu.CheckpointAction]bool
}

func (h *scripted) Checkpoint(_ context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	h.asked = append(h.asked, r.Action)
	var a gpu.CheckpointAnswer
	if h.fails[r.Action] {
		a.Failure, a.Message = gpu.FailureCUDA, "CUDA says no"
	}
	for n, state := range h.states {
		switch {
		case a.Failure != "":
		case r.Action == gpu.CheckpointSuspend && state != gpu.ProcessCheckpointed:
			a.HeldMiB += 10 << 10
			h.states[n] = gpu.ProcessCheckpointed
		case r.Action == gpu.CheckpointUnlock && state == gpu.ProcessLocked:
			h.states[n] = gpu.ProcessRunning
		}
		a.Processes = append(a.Processes, gpu.CheckpointProcess{PID: n + 1, State: h.states[n]})
	}
	return a, nil
}

// What is found out of a task's processes brings the task to a state that is known, or
// leaves it unknown with the reason.
func TestWhatIsFoundOut(t *testing.T) {
	const resident, suspended, suspending, resuming = gpu.SeatResident, gpu.SeatSuspended, gpu.SeatSuspending, gpu.SeatResuming
	const running, locked, away, failed = gpu.ProcessRunning, gpu.ProcessLocked, gpu.ProcessCheckpointed, gpu.ProcessFailed
	type states = []gpu.CheckpointState
	for name, row := range map[string]struct {
		was     gpu.SeatState
		states  states
		fails   gpu.CheckpointAction
		is      gpu.SeatState
		unknown bool
		reason  string
		mib     int64
	}{
		"it goes on":                         {resident, states{running}, "", resident, false, "", 40 << 10},
		"it has no program on the device":    {resident, nil, "", resident, false, "", 40 << 10},
		"it was left locked":                 {suspending, states{locked}, "", resident, false, "", 40 << 10},
		"and cannot be unlocked":             {suspending, states{locked}, gpu.CheckpointUnlock, suspending, true, "its processes are locked, and could not be unlocked: CUDA says no", 40 << 10},
		"it has left":                        {suspending, states{away}, "", suspended, false, "", 40 << 10},
		"its programs ended meanwhile":       {suspending, nil, "", suspended, false, "", 0},
		"its programs ended on the host":     {suspended, nil, "", suspended, false, "", 0},
		"it has not come back":               {resuming, states{away}, "", suspended, false, "it could not come back: what brought it back was cut short", 40 << 10},
		"it has come back":                   {resuming, states{running}, "", resident, false, "", 40 << 10},
		"a part of it has come back":         {resuming, states{running, away}, "", suspended, false, "", 40 << 10},
		"a part of it has left":              {resident, states{running, away}, "", suspended, false, "", 40 << 10},
		"it has started a program meanwhile": {suspended, states{running, away}, "", suspended, false, "", 50 << 10},
		"the rest of it cannot leave":        {suspended, states{running, away}, gpu.CheckpointSuspend, suspended, false, "only a part of it could be suspended: CUDA says no", 40 << 10},
		"it cannot be looked at":             {suspended, states{away}, gpu.CheckpointLook, suspended, true, "what state its processes are in is not known: CUDA says no", 40 << 10},
		"CUDA has lost it":                   {suspended, states{failed}, "", gpu.SeatLost, false, "CUDA has lost a process", 40 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			h := &scripted{states: row.states, fails: map[gpu.CheckpointAction]bool{row.fails: true}}
			c := &Controller{UUID: "gpu", Host: h, Now: func() time.Time { return start }, Patience: Patience}
			c.device = Device{CapacityMiB: 80 << 10, Rules: rules}
			c.seats = []gpu.Seat{with(seated("a", row.was, 50, time.Minute), func(s *gpu.Seat) { s.Unknown, s.UnknownSince = true, start })}
			s := &c.seats[0]
			if err := c.findOut(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if s.State != row.is || s.Unknown != row.unknown || s.MemoryMiB != row.mib || row.reason != "" && s.Reason != row.reason {
				t.Errorf("it was asked to %v, and is %+v", h.asked, *s)
			}
			if told, back := strings.Join(h.told, "\n"), row.was == resuming && row.is == resident; strings.Contains(told, "back on the GPU") != back || back && !s.Resumed {
				t.Errorf("it is told %q, and is %+v", told, *s)
			}
			if tried := s.Failures > 0; row.unknown && !tried {
				t.Errorf("it is not tried again later: %+v", *s)
			}
		})
	}
}

// A task that runs and of which nothing was written down is on the device, for all that is
// known; one that starts waits. Those that have ended have no seats, and who came first is
// first.
func TestTasksThatComeAndGo(t *testing.T) {
	c := &Controller{UUID: "gpu", Host: &stubborn{}, Now: func() time.Time { return start }, Patience: Patience}
	c.seats = []gpu.Seat{seated("late", gpu.SeatSuspended, 50, time.Minute), seated("early", gpu.SeatSuspended, 50, time.Hour), seated("ended", gpu.SeatResident, 50, 0), seated("again", gpu.SeatSuspended, 50, 0)}
	task := func(id string, starting bool) Task {
		return Task{LeaseID: id, Starting: starting, Priority: 7, DeclaredMiB: 9}
	}
	again := task("again", true)
	again.StartedAt = start
	c.follow(Device{Rules: rules, Tasks: []Task{task("late", false), task("early", false), again, task("found", false)}})
	var got []string
	for _, s := range c.seats {
		got = append(got, s.LeaseID+" "+string(s.State))
		if s.Priority != 7 || s.DeclaredMiB != 9 || s.Unknown != (s.LeaseID == "found") {
			t.Errorf("%+v", s)
		}
	}
	if want := "early suspended, late suspended, again waiting, found resident"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestWhatATaskAsksFor(t *testing.T) {
	c := &Controller{Now: func() time.Time { return start }}
	asks := func(state gpu.SeatState, w Wish) gpu.Seat {
		s := gpu.Seat{State: state, Idle: w == WishWant, Trials: 3, Yield: w == WishWant}
		c.wish(&s, w)
		return s
	}
	for _, onHost := range []gpu.SeatState{gpu.SeatSuspended, gpu.SeatSuspending} {
		if s := asks(onHost, WishYield); !s.Idle || s.Yield {
			t.Errorf("a task on the host that does not want to come back: %+v", s)
		}
		if s := asks(onHost, WishWant); s.Idle || s.Trials != 0 {
			t.Errorf("a task on the host that wants to come back: %+v", s)
		}
	}
	if s := asks(gpu.SeatResident, WishYield); !s.Yield || s.Idle {
		t.Errorf("a resident that steps aside: %+v", s)
	}
	if s := asks(gpu.SeatResident, WishWant); s.Yield || s.WantedAt != start {
		t.Errorf("a resident that needs the device: %+v", s)
	}
}

// What fails is tried again after longer and longer pauses, and not for ever while it is
// not known where a task is. Each move is counted.
func TestFailuresAndMovesAreCounted(t *testing.T) {
	host, now := &stubborn{}, start
	c := &Controller{Host: host, Now: func() time.Time { return now }}
	s := gpu.Seat{LeaseID: "a", State: gpu.SeatSuspended, MemoryMiB: 100}
	for n, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
		if c.failed(&s, "no"); s.NotBefore != now.Add(want*time.Second) || s.Failures != n+1 || s.Reason != "no" {
			t.Errorf("after %d: %+v", n, s)
		}
	}
	s.Unknown, s.UnknownSince = true, start
	if now = start.Add(giveUp - 1); s.State == gpu.SeatSuspended {
		c.failed(&s, "no")
	}
	if s.State != gpu.SeatSuspended || len(host.lost) != 0 {
		t.Errorf("it is lost too early: %+v", s)
	}
	now = start.Add(giveUp)
	if c.failed(&s, "no"); s.State != gpu.SeatLost || len(host.lost) != 1 {
		t.Errorf("it is not lost: %+v", s)
	}
	s = gpu.Seat{MemoryMiB: 100}
	c.count(&s, &s.OutMS, now.Add(-2*time.Second))
	c.count(&s, &s.InMS, now.Add(-time.Second))
	c.count(&s, &s.InMS, time.Time{}) // it is not known how long that took
	if s.Switches != 3 || s.MovedMiB != 300 || s.OutMS != 2000 || s.InMS != 1000 || s.SwitchMS != 3000 {
		t.Errorf("got %+v", s)
	}
}

// A resident with a process whose state CUDA does not tell has not left: it keeps the GPU, and
// its locked processes go on. On the host it is killed when it could not come back for too long.
func TestATaskWhoseStateIsNotTold(t *testing.T) {
	unread := func(states ...gpu.CheckpointState) gpu.CheckpointAnswer {
		a := answer(gpu.FailureCUDA, states...)
		a.Unread = []int{99}
		return a
	}
	now := start
	h := &scene{answers: []gpu.CheckpointAnswer{unread(gpu.ProcessLocked), unread(gpu.ProcessRunning)}}
	c := play(h, seated("a", gpu.SeatResident, 50, time.Hour))
	c.Now = func() time.Time { return now }
	s := &c.seats[0]
	c.doubt(s)
	s.UnknownSince = start.Add(-time.Hour)
	if err := c.findOut(t.Context(), s); err != nil || s.State != gpu.SeatResident || s.Unknown || len(h.lost) != 0 || h.asked[1].Action != gpu.CheckpointUnlock {
		t.Errorf("%v, %+v, lost %q, asked %+v", err, s, h.lost, h.asked)
	}
	s.State = gpu.SeatSuspended
	for ; now.Before(start.Add(giveUp + time.Second)); now = now.Add(retryLast) {
		if len(h.lost) != 0 {
			t.Fatalf("at %v it is lost: %q", now, h.lost)
		}
		h.answers = []gpu.CheckpointAnswer{unread(gpu.ProcessCheckpointed)}
		if err := c.resume(t.Context(), s, Move{Do: Resume, LeaseID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(h.lost) != 1 || !strings.Contains(h.lost[0], "could not be found out for 10m0s: CUDA says no") {
		t.Errorf("lost is %q", h.lost)
	}
}
