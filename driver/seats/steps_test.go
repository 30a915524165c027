// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestPatience(t *testing.T) {
	if got := Patience(256 * 90); got != 2*time.Minute {
		t.Errorf("got %v", got)
	}
}

// What an earlier process has left is taken up, and looked at: where its tasks are is not
// known, except of those that wait or are lost.
func TestRestore(t *testing.T) {
	var left gpu.Seats
	for _, state := range []gpu.SeatState{gpu.SeatWaiting, gpu.SeatResident, gpu.SeatSuspending, gpu.SeatSuspended, gpu.SeatResuming, gpu.SeatLost} {
		left.Seats = append(left.Seats, with(seated(string(state), state, 50, 0), func(s *gpu.Seat) { s.NotBefore = start.Add(time.Hour) }))
	}
	left.Seats[1].Unknown, left.Seats[1].UnknownSince = true, start.Add(-time.Hour)
	c := play(&scene{})
	c.Restore(left)
	for _, s := range c.Seats() {
		if s.Unknown != (s.State != gpu.SeatWaiting && s.State != gpu.SeatLost) || s.Unknown && !s.UnknownSince.Equal(start) || !s.NotBefore.IsZero() {
			t.Errorf("%+v", s)
		}
	}
	if got := c.HostMiB(); got != 4*40<<10 {
		t.Errorf("%d MiB are on the host", got)
	}
}

// How much of the host's memory a task's control group is given, and when it is taken back.
func TestLimitsOfMemory(t *testing.T) {
	for name, row := range map[string]struct {
		state   gpu.SeatState
		limit   int64 // that is written down, in MiB
		hostMiB int64 // of the node's other devices
		unknown bool
		set     int64 // in MiB, 0 for not at all
		left    int64
	}{
		"no limit was raised":        {state: gpu.SeatResident},
		"it is back":                 {state: gpu.SeatResident, limit: 100, set: 100},
		"it is not known where":      {state: gpu.SeatResident, limit: 100, unknown: true, left: 100},
		"it is on its way":           {state: gpu.SeatSuspending, limit: 100, left: 100},
		"it is away":                 {state: gpu.SeatSuspended, limit: 100, set: 100 + 41<<10 + 64, left: 100},
		"the host has no more":       {state: gpu.SeatSuspended, limit: 100, hostMiB: 20<<10 - 500, set: 100 + 40<<10 + 500 + 64, left: 100},
		"or less than what is there": {state: gpu.SeatSuspended, limit: 100, hostMiB: 90 << 10, set: 100 + 40<<10 + 64, left: 100},
	} {
		h := &scene{}
		c := play(h, with(seated("a", row.state, 50, 0), func(s *gpu.Seat) { s.MemoryLimit, s.Unknown = row.limit<<20, row.unknown }), seated("b", gpu.SeatSuspended, 50, 0))
		c.device.HostMiB = row.hostMiB
		c.lowerLimit(&c.seats[0])
		if want := fmt.Sprint([]int64{row.set}); row.set > 0 && fmt.Sprint(h.set) != want || row.set == 0 && h.set != nil || c.seats[0].MemoryLimit != row.left<<20 {
			t.Errorf("%s: set %v, left %d", name, h.set, c.seats[0].MemoryLimit>>20)
		}
	}
	for name, row := range map[string]struct {
		state     gpu.SeatState
		had, host int64 // in MiB
		set, kept int64
	}{
		"a task without a limit":   {state: gpu.SeatSuspending},
		"a resident leaves":        {state: gpu.SeatSuspending, host: 100, set: 100 + 41<<10 + 64, kept: 100},
		"its limit is raised":      {state: gpu.SeatSuspending, had: 70, host: 100, set: 70 + 41<<10 + 64, kept: 70},
		"what has come since goes": {state: gpu.SeatSuspended, host: 100, set: 100 + 40<<10 + 3<<10 + 64, kept: 100},
	} {
		h := &scene{limit: row.host << 20}
		c := play(h, with(seated("a", row.state, 50, 0), func(s *gpu.Seat) { s.MemoryLimit = row.had << 20 }))
		c.device.Tasks = []Task{{LeaseID: "a", MeasuredMiB: 2 << 10}, {LeaseID: "b", MeasuredMiB: 50 << 10}}
		if err := c.raiseLimit(&c.seats[0]); err != nil {
			t.Fatal(err)
		}
		if row.set > 0 && fmt.Sprint(h.set) != fmt.Sprint([]int64{row.set}) || row.set == 0 && (h.set != nil || h.saved > 0) || row.set > 0 && h.saved != 1 || c.seats[0].MemoryLimit != row.kept<<20 {
			t.Errorf("%s: set %v, kept %d, saved %d times", name, h.set, c.seats[0].MemoryLimit>>20, h.saved)
		}
		h.saveErr = errNo
		if err := c.raiseLimit(&c.seats[0]); (err != nil) != (row.set > 0) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A task that goes on using what was its GPU memory, on the host, is ended after two
// minutes in which no limit could be set.
func TestTasksThatTakeTheHostsMemory(t *testing.T) {
	h, now := &scene{setErr: ErrInUse}, start
	c := play(h, with(seated("a", gpu.SeatResident, 50, 0), func(s *gpu.Seat) { s.MemoryLimit = 100 << 20 }))
	c.Now = func() time.Time { return now }
	d := Device{CapacityMiB: 80 << 10, Rules: rules, Tasks: []Task{{LeaseID: "a"}}}
	step := func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if _, err := c.Step(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		step(time.Minute - time.Second)
	}
	h.setErr = errNo // another failure is not the task's
	step(time.Minute)
	h.setErr = nil
	step(time.Second)
	if c.seats[0].MemoryLimit != 0 || len(c.greedy) != 0 || len(h.lost) != 0 {
		t.Fatalf("%+v, %v", c.seats[0], h.lost)
	}
	c.seats[0].MemoryLimit, h.setErr = 100<<20, ErrInUse
	for range 2 {
		step(time.Minute)
	}
	if len(h.lost) != 0 {
		t.Fatalf("lost too early: %v", h.lost)
	}
	if step(time.Minute); len(h.lost) != 1 || !strings.Contains(h.lost[0], "a: it uses more than 100 MiB of the host's memory") {
		t.Errorf("lost: %v", h.lost)
	}
	d.Tasks = nil
	if step(time.Second); len(c.greedy) != 0 || len(c.Seats()) != 0 {
		t.Errorf("%v is kept", c.greedy)
	}
}

// A suspended task that starts programs again and again is ended, one that does so now and
// then is not.
func TestStrays(t *testing.T) {
	h, now := &scene{}, start
	c := play(h, seated("a", gpu.SeatSuspended, 50, 0))
	c.Now = func() time.Time { return now }
	s := &c.seats[0]
	for range 8 {
		now = now.Add(time.Minute)
		c.stray(s)
	}
	now = now.Add(time.Minute + 1)
	for range 8 {
		c.stray(s)
	}
	if !s.Unknown || s.State != gpu.SeatSuspended {
		t.Fatalf("got %+v, lost %v", s, h.lost)
	}
	if c.stray(s); s.State != gpu.SeatLost || len(h.lost) != 1 {
		t.Errorf("got %+v, lost %v", s, h.lost)
	}
}

// What was measured of a task says what it holds, when it used the device, and whether it
// has programs there while it is suspended.
func TestWhatWasMeasured(t *testing.T) {
	at := start.Add(-time.Second)
	for name, row := range map[string]struct {
		was   gpu.Seat
		milli int64
		mib   int64
		want  gpu.Seat
	}{
		"it computes":           {gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2}, 1, 10, gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, LastUse: at}},
		"it grows":              {gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2, LastUse: start.Add(-time.Hour)}, 0, 11, gpu.Seat{State: gpu.SeatResident, MemoryMiB: 11, LastUse: at}},
		"it shrinks":            {gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2, LastUse: start.Add(-time.Hour)}, 0, 9, gpu.Seat{State: gpu.SeatResident, MemoryMiB: 9, Trials: 2, LastUse: start.Add(-time.Hour)}},
		"it has not computed":   {gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2, Since: start.Add(-time.Minute)}, 0, 10, gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2, Since: start.Add(-time.Minute), LastUse: start.Add(-time.Minute)}},
		"nobody tells":          {gpu.Seat{State: gpu.SeatResident, MemoryMiB: 10, Trials: 2}, -1, 11, gpu.Seat{State: gpu.SeatResident, MemoryMiB: 11, Trials: 2}},
		"it is away":            {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10}, 5, 0, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10}},
		"and has a program":     {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10}, 5, 1, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, Unknown: true, UnknownSince: start}},
		"which is known":        {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, Fixed: true}, 5, 1, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, Fixed: true}},
		"or is tried later":     {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, NotBefore: start.Add(1)}, 5, 1, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, NotBefore: start.Add(1)}},
		"or is looked at":       {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, Unknown: true}, 5, 1, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, Unknown: true}},
		"one that is to start":  {gpu.Seat{State: gpu.SeatWaiting}, 5, 1, gpu.Seat{State: gpu.SeatWaiting}},
		"one that is tried now": {gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, NotBefore: start}, 5, 1, gpu.Seat{State: gpu.SeatSuspended, MemoryMiB: 10, NotBefore: start, Unknown: true, UnknownSince: start}},
	} {
		s := row.was
		play(&scene{}).measured(&s, Task{Milli: row.milli, MeasuredMiB: row.mib}, at)
		if !reflect.DeepEqual(s, row.want) {
			t.Errorf("%s: got\n%+v, want\n%+v", name, s, row.want)
		}
	}
}

// A step looks at what is not known, ends who is lost once more, and moves nothing by what
// was measured before the last move.
func TestSteps(t *testing.T) {
	h, now := &scene{}, start
	c := play(h, with(seated("lost", gpu.SeatLost, 50, time.Hour), func(s *gpu.Seat) { s.Reason, s.NotBefore = "why", start.Add(2*time.Minute) }),
		with(seated("doubtful", gpu.SeatResident, 50, time.Minute), func(s *gpu.Seat) { s.Unknown, s.UnknownSince, s.NotBefore = true, start, start.Add(3*time.Minute) }))
	c.Now = func() time.Time { return now }
	d := Device{CapacityMiB: 80 << 10, Rules: rules, MeasuredAt: start.Add(-time.Hour), Tasks: []Task{{LeaseID: "lost"}, {LeaseID: "doubtful"}, {LeaseID: "new", Starting: true, DeclaredMiB: 30 << 10}}}
	step := func(after time.Duration) (Move, error) { now = now.Add(after); return c.Step(t.Context(), d) }
	for n, row := range []struct {
		after       time.Duration
		lost, asked int
		do          Do
	}{
		{2*time.Minute - 1, 0, 0, Nothing},
		{1, 1, 0, Nothing},
		{time.Minute, 1, 1, Nothing}, // it is found on the device
		{0, 1, 1, Nothing},           // which was measured before
	} {
		h.answers = []gpu.CheckpointAnswer{answer("", gpu.ProcessRunning)}
		move, err := step(row.after)
		if err != nil || len(h.lost) != row.lost || len(h.asked) != row.asked || move.Do != row.do || h.saved != n+1 {
			t.Errorf("%d: %v %+v, lost %v, asked %v, saved %d", n, err, move, h.lost, h.asked, h.saved)
		}
	}
	if !reflect.DeepEqual(h.lost, []string{"lost: why"}) {
		t.Errorf("lost: %q", h.lost)
	}
	d.MeasuredAt = now
	if move, _ := step(0); move.Do != Nothing {
		t.Errorf("got %+v", move)
	}
	d.MeasuredAt, d.UsedMiB = now.Add(1), 45<<10
	h.saveErr = errNo
	move, err := step(time.Hour)
	if s := c.seat("new"); err == nil || move.Do != Resume || s.State != gpu.SeatResident || !s.Overdue || s.Yield || !strings.HasPrefix(h.told[0], "new: ") {
		t.Errorf("%v: %+v, told %q", err, move, h.told)
	}
	c.seats[0].Unknown, c.seats[0].State = true, gpu.SeatResident
	c.seats[0].NotBefore = time.Time{}
	h.answers = []gpu.CheckpointAnswer{answer("", gpu.ProcessRunning, gpu.ProcessCheckpointed)}
	h.limit = 1 << 30
	if _, err := step(0); err == nil {
		t.Error("a step that was not written down is taken for done")
	}
}

// What others than residents hold of a device is what is used beyond what these hold.
func TestViews(t *testing.T) {
	c := play(&scene{}, seated("a", gpu.SeatResident, 50, 0), seated("b", gpu.SeatSuspended, 50, 0))
	for used, other := range map[int64]int64{50 << 10: 10 << 10, 30 << 10: 0} {
		v := c.view(Device{CapacityMiB: 80 << 10, UsedMiB: used, HostMiB: 1 << 10})
		if v.OtherMiB != other || v.HostMiB != 41<<10 || v.CapacityMiB != 80<<10 {
			t.Errorf("%+v", v)
		}
	}
}
