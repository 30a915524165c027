// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// scene is a host whose answers are given, one for each request, and whose calls fail as
// they are told to.
type scene struct {
	stubborn
	answers []gpu.CheckpointAnswer
	asked   []gpu.CheckpointRequest
	limit   int64
	set     []int64 // what limits were set to, in MiB
	pids    map[string][]int
	saved   int

	askErr, limitErr, setErr, saveErr, pidsErr error
}

var errNo = errors.New("no")

func (h *scene) Checkpoint(ctx context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	h.asked = append(h.asked, r)
	if _, limited := ctx.Deadline(); !limited {
		return gpu.CheckpointAnswer{}, errors.New("it may take for ever")
	}
	if len(h.answers) == 0 {
		return gpu.CheckpointAnswer{}, h.askErr
	}
	a := h.answers[0]
	h.answers = h.answers[1:]
	return a, nil
}

func (h *scene) Processes(leaseID string) ([]int, error) { return h.pids[leaseID], h.pidsErr }
func (h *scene) MemoryLimit(string) (int64, error)       { return h.limit, h.limitErr }
func (h *scene) SetMemoryLimit(_ string, limit int64) error {
	h.set = append(h.set, limit>>20)
	return h.setErr
}
func (h *scene) Save(gpu.Seats) error { h.saved++; return h.saveErr }

// answer has processes in these states, which went wrong for a reason, or did not.
func answer(why gpu.CheckpointFailure, states ...gpu.CheckpointState) gpu.CheckpointAnswer {
	a := gpu.CheckpointAnswer{Failure: why, HeldMiB: 40 << 10}
	if why != "" {
		a.Message = "CUDA says no"
	}
	for n, state := range states {
		a.Processes = append(a.Processes, gpu.CheckpointProcess{PID: n + 1, State: state})
	}
	return a
}

func play(h *scene, seats ...gpu.Seat) *Controller {
	c := &Controller{UUID: "gpu", Host: h, Now: func() time.Time { return start }, Patience: Patience, seats: seats}
	c.device = Device{CapacityMiB: 80 << 10, Rules: rules}
	return c
}

// What comes of a suspension: where the task is, when it is tried again and what it is told.
func TestSuspensions(t *testing.T) {
	const running, locked, away, failed = gpu.ProcessRunning, gpu.ProcessLocked, gpu.ProcessCheckpointed, gpu.ProcessFailed
	yield := func(s *gpu.Seat) { s.Yield = true }
	for name, row := range map[string]struct {
		host  scene
		was   func(*gpu.Seat)
		idle  bool
		err   bool
		asked int
		want  gpu.Seat // what checkSeat looks at; NotBefore is after wait
		wait  time.Duration
		says  string
		told  string
	}{
		"it leaves":             {host: scene{answers: []gpu.CheckpointAnswer{answer("", away)}}, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, OutMS: 1000}, told: "for b; it comes back when there is room"},
		"it is idle":            {host: scene{answers: []gpu.CheckpointAnswer{answer("", away)}}, idle: true, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, OutMS: 1000, Trials: 3}},
		"it steps aside":        {host: scene{answers: []gpu.CheckpointAnswer{answer("", away)}}, was: yield, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, OutMS: 1000, Yielded: true}},
		"it has no programs":    {host: scene{answers: []gpu.CheckpointAnswer{answer("")}}, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, OutMS: 1000}},
		"it cannot be written":  {host: scene{saveErr: errNo}, err: true, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2}},
		"its limit is unknown":  {host: scene{limitErr: errNo}, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "limit could not be raised: no"},
		"its limit stays":       {host: scene{limit: 1 << 30, setErr: errNo}, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "limit could not be raised: no"},
		"nobody answers":        {host: scene{askErr: errNo}, asked: 1, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "could not be suspended: no"},
		"it has no number":      {host: scene{pidsErr: errNo}, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "could not be suspended: no"},
		"CUDA loses it":         {host: scene{answers: []gpu.CheckpointAnswer{answer("", failed, away)}}, asked: 1, want: gpu.Seat{State: gpu.SeatLost, Trials: 2}, wait: 2 * time.Minute, says: "CUDA has lost a process"},
		"a part cannot now":     {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, running, away)}}, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "only a part of it could be suspended: CUDA says no"},
		"a part never can":      {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureUnsupported, running, away)}}, asked: 1, want: gpu.Seat{State: gpu.SeatSuspended, Trials: 2, Failures: 1, Fixed: true}, says: "only a part of it could be suspended: CUDA says no"},
		"it cannot now":         {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, running)}}, was: yield, asked: 1, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Failures: 1, Yield: true, Yielded: true}, wait: 5 * time.Second, says: "cannot be suspended now: CUDA says no"},
		"it never can":          {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureUnsupported, running)}}, asked: 1, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Failures: 1, Fixed: true}, wait: 10 * time.Minute, told: "keeps the GPU: CUDA says no"},
		"it is left locked":     {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, locked), answer("", running)}}, asked: 2, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "cannot be suspended now: CUDA says no"},
		"and stays locked":      {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, locked), answer(gpu.FailureCUDA, locked)}}, asked: 2, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "could not be unlocked: CUDA says no"},
		"and nobody unlocks it": {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, locked)}, askErr: errNo}, asked: 2, want: gpu.Seat{State: gpu.SeatSuspending, Unknown: true, Trials: 2, Failures: 1}, wait: 5 * time.Second, says: "could not be unlocked: no"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &row.host
			c := play(h, with(seated("a", gpu.SeatResident, 50, time.Hour), func(s *gpu.Seat) {
				s.Trials = 2
				if row.was != nil {
					row.was(s)
				}
			}), seated("b", gpu.SeatWaiting, 50, 0))
			c.Now = func() time.Time { return start.Add(time.Duration(len(h.asked)) * time.Second) } // a second for each request
			s := &c.seats[0]
			err := c.suspend(t.Context(), s, Move{Do: Suspend, LeaseID: "a", For: "b", Reason: "its turn is over", Idle: row.idle})
			if (err != nil) != row.err || len(h.asked) != row.asked {
				t.Fatalf("%v, it was asked to %+v", err, h.asked)
			}
			if row.wait > 0 {
				row.want.NotBefore = c.Now().Add(row.wait)
			}
			checkSeat(t, *s, row.want)
			if !strings.Contains(s.Reason, row.says) || !strings.Contains(strings.Join(h.told, "\n"), row.told) {
				t.Errorf("reason %q, told %q", s.Reason, h.told)
			}
			if s.State == gpu.SeatResident && !s.Since.Equal(start.Add(-time.Hour)) {
				t.Errorf("its turn began anew at %v", s.Since)
			}
			if row.asked > 0 && (h.asked[0].Action != gpu.CheckpointSuspend || h.asked[0].MostMiB != 41<<10 || h.asked[0].LockMS != 10_000 || h.asked[0].UUID != "gpu") {
				t.Errorf("it was asked to %+v", h.asked[0])
			}
		})
	}
}

func checkSeat(t *testing.T, s, want gpu.Seat) {
	t.Helper()
	got := gpu.Seat{State: s.State, Unknown: s.Unknown, Fixed: s.Fixed, Failures: s.Failures, NotBefore: s.NotBefore, Trials: s.Trials,
		Yield: s.Yield, Yielded: s.Yielded, OutMS: s.OutMS, InMS: s.InMS, Resumed: s.Resumed, Idle: s.Idle}
	want.Idle = got.Idle && want.State != gpu.SeatResident // checked where it matters
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

// What comes of bringing a task back, and of its neighbors, which are held meanwhile.
func TestComingBack(t *testing.T) {
	const running, locked, away, failed = gpu.ProcessRunning, gpu.ProcessLocked, gpu.ProcessCheckpointed, gpu.ProcessFailed
	again := start.Add(20 * time.Second) // after the third failure
	for name, row := range map[string]struct {
		host   scene
		fixed  bool
		refuse bool
		err    bool
		asked  []gpu.CheckpointAction
		want   gpu.Seat
		beside bool // whether it is known where its neighbors are
		says   string
	}{
		"it comes":              {host: scene{answers: []gpu.CheckpointAnswer{answer("", running)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Resumed: true}, beside: true},
		"it is fixed":           {host: scene{answers: []gpu.CheckpointAnswer{answer("", running)}}, fixed: true, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Resumed: true, Fixed: true, NotBefore: start.Add(10 * time.Minute)}, beside: true},
		"and is refused":        {host: scene{answers: []gpu.CheckpointAnswer{answer("", running)}}, fixed: true, refuse: true, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatLost, Trials: 2, Resumed: true, Fixed: true, NotBefore: start.Add(2 * time.Minute)}, beside: true, says: "a part of it only"},
		"it is not written":     {host: scene{saveErr: errNo}, err: true, want: gpu.Seat{State: gpu.SeatResuming, Unknown: true, Trials: 2, Failures: 2}},
		"neighbors are hidden":  {host: scene{pidsErr: errNo}, want: gpu.Seat{State: gpu.SeatSuspended, Trials: 2, Failures: 3, NotBefore: again}, beside: true, says: "could not come back: no"},
		"nobody answers":        {host: scene{askErr: errNo}, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatResuming, Unknown: true, Trials: 2, Failures: 3, NotBefore: again}, says: "could not be brought back: no"},
		"CUDA loses it":         {host: scene{answers: []gpu.CheckpointAnswer{answer("", failed)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatLost, Trials: 2, Failures: 2, NotBefore: start.Add(2 * time.Minute)}, beside: true, says: "CUDA has lost a process"},
		"it stays away":         {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, away)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume}, want: gpu.Seat{State: gpu.SeatSuspended, Trials: 2, Failures: 3, NotBefore: again}, says: "could not come back: CUDA says no"},
		"a part comes":          {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, running, away), answer("", away, away)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume, gpu.CheckpointSuspend}, want: gpu.Seat{State: gpu.SeatSuspended, Trials: 2, Failures: 3, NotBefore: again}, says: "could not come back: CUDA says no"},
		"and is lost":           {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, locked, away), answer("", failed, away)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume, gpu.CheckpointSuspend}, want: gpu.Seat{State: gpu.SeatLost, Trials: 2, Failures: 2, NotBefore: start.Add(2 * time.Minute)}, says: "CUDA has lost a process"},
		"and nobody answers":    {host: scene{answers: []gpu.CheckpointAnswer{answer(gpu.FailureCUDA, running, away)}, askErr: errNo}, asked: []gpu.CheckpointAction{gpu.CheckpointResume, gpu.CheckpointSuspend}, want: gpu.Seat{State: gpu.SeatResuming, Unknown: true, Trials: 2, Failures: 3, NotBefore: again}, says: "only a part of it could be brought back: no"},
		"it is locked":          {host: scene{answers: []gpu.CheckpointAnswer{answer("", locked), answer("", running)}}, asked: []gpu.CheckpointAction{gpu.CheckpointResume, gpu.CheckpointUnlock}, want: gpu.Seat{State: gpu.SeatResident, Trials: 2, Resumed: true}, beside: true},
		"and nobody unlocks it": {host: scene{answers: []gpu.CheckpointAnswer{answer("", locked)}, askErr: errNo}, asked: []gpu.CheckpointAction{gpu.CheckpointResume, gpu.CheckpointUnlock}, want: gpu.Seat{State: gpu.SeatResuming, Unknown: true, Trials: 2, Failures: 3, NotBefore: again}, beside: true, says: "could not be unlocked: no"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &row.host
			h.pids = map[string][]int{"a": {1}, "b": {11, 12}, "c": {13}, "d": {14}}
			c := play(h, with(seated("a", gpu.SeatSuspended, 50, time.Hour), func(s *gpu.Seat) { s.Fixed, s.Trials, s.Failures, s.Idle = row.fixed, 2, 2, true }),
				seated("b", gpu.SeatResident, 50, 0), seated("c", gpu.SeatWaiting, 50, 0), seated("d", gpu.SeatSuspended, 50, 0))
			c.device.Rules.RefuseFixed = row.refuse
			c.stuck = streaks{"b": {}}
			err := c.resume(t.Context(), &c.seats[0], Move{Do: Resume, LeaseID: "a", Overdue: true})
			if (err != nil) != row.err {
				t.Fatal(err)
			}
			var asked []gpu.CheckpointAction
			for _, r := range h.asked {
				asked = append(asked, r.Action)
			}
			s := c.seats[0]
			checkSeat(t, s, row.want)
			if !reflect.DeepEqual(asked, row.asked) || !strings.Contains(s.Reason, row.says) || s.State == gpu.SeatResident && s.Reason != "" {
				t.Errorf("it was asked to %v, and is %+v", asked, s)
			}
			if s.State == gpu.SeatSuspended && !s.Since.Equal(start.Add(-time.Hour)) {
				t.Errorf("it lost its place: %v", s.Since)
			}
			if s.State == gpu.SeatResident && (s.Idle || !s.Overdue || len(h.told) != 1) {
				t.Errorf("it is %+v, and was told %q", s, h.told)
			}
			if len(h.asked) > 0 && (!reflect.DeepEqual(h.asked[0].Beside, []int{11, 12, 14}) || h.asked[0].RoomMiB != 40<<10+64 || !reflect.DeepEqual(h.asked[0].PIDs, []int{1})) {
				t.Errorf("it was asked to %+v", h.asked[0])
			}
			if c.seats[1].Unknown == row.beside || c.seats[3].Unknown == row.beside || c.seats[2].Unknown {
				t.Errorf("its neighbors: %+v", c.seats[1:])
			}
		})
	}
}

// A neighbor that cannot be locked keeps others away for ten minutes, and not for ever.
func TestNeighborsThatCannotBeHeld(t *testing.T) {
	h := &scene{pids: map[string][]int{"b": {11}, "c": {13}}}
	c := play(h, seated("a", gpu.SeatSuspended, 50, time.Hour), seated("b", gpu.SeatResident, 50, 0), seated("c", gpu.SeatResident, 50, 0))
	now := start
	c.Now = func() time.Time { return now }
	try := func(after time.Duration, stuck ...int) {
		t.Helper()
		now = now.Add(after)
		a := answer(gpu.FailureCUDA, gpu.ProcessCheckpointed)
		a.Stuck = stuck
		h.answers = []gpu.CheckpointAnswer{a}
		if err := c.resume(t.Context(), &c.seats[0], Move{}); err != nil {
			t.Fatal(err)
		}
	}
	lost := func() string { return strings.Join(h.lost, "\n") }
	try(0, 11, 99)
	try(4*time.Minute, 11)
	try(4*time.Minute+time.Second, 11) // after a pause that is too long it counts anew
	try(3*time.Minute, 11)
	try(3*time.Minute, 11)
	try(4*time.Minute-time.Second, 11)
	if lost() != "" {
		t.Fatalf("lost too early: %s", lost())
	}
	try(time.Second, 11)
	if !strings.HasPrefix(lost(), "b: its GPU processes could not be held for 10m0s") || strings.Contains(lost(), "\n") {
		t.Errorf("lost: %s", lost())
	}
	try(time.Second, 11) // once is enough
	if len(h.lost) != 1 {
		t.Errorf("lost: %s", lost())
	}
	// A return that succeeds begins the count anew.
	try(0, 13)
	h.answers = []gpu.CheckpointAnswer{answer("", gpu.ProcessRunning)}
	if err := c.resume(t.Context(), &c.seats[0], Move{}); err != nil || len(c.stuck) != 0 {
		t.Errorf("%v, %v", err, c.stuck)
	}
}
