// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var (
	start = time.Unix(1e9, 0)
	rules = Rules{Idle: time.Minute, SwitchPercent: 10, MinTurn: 30 * time.Second, MaxWait: time.Hour, HeadroomMiB: 1024, HostMiB: 100 << 10}
)

// seated is a task of 40 GiB that came to where it is so long ago, and computes.
func seated(id string, state gpu.SeatState, priority int, ago time.Duration) gpu.Seat {
	return gpu.Seat{LeaseID: id, State: state, Priority: priority, MemoryMiB: 40 << 10, Since: start.Add(-ago), LastUse: start, Switches: 1}
}

func with(s gpu.Seat, change func(*gpu.Seat)) gpu.Seat {
	change(&s)
	return s
}

func TestNext(t *testing.T) {
	const resident, suspended, waiting = gpu.SeatResident, gpu.SeatSuspended, gpu.SeatWaiting
	slow := func(s *gpu.Seat) { s.OutMS, s.InMS = 10_000, 10_000 }
	for name, tc := range map[string]struct {
		seats []gpu.Seat
		host  int64
		want  string
		why   string
	}{
		"nobody waits":               {[]gpu.Seat{seated("a", resident, 50, time.Hour)}, 0, "", ""},
		"there is room":              {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.MemoryMiB = 10 << 10 }), seated("b", suspended, 50, 0)}, 0, "resume b", ""},
		"a turn goes on":             {[]gpu.Seat{seated("a", resident, 50, 20*time.Second), seated("b", suspended, 50, 0)}, 0, "", ""},
		"a turn is over":             {[]gpu.Seat{seated("a", resident, 50, 40*time.Second), seated("b", suspended, 50, 0)}, 0, "suspend a", "turn of 30s is over"},
		"a switch costs 40 s":        {[]gpu.Seat{with(seated("a", resident, 50, 350*time.Second), slow), with(seated("b", suspended, 50, 0), slow)}, 0, "", ""},
		"and is a tenth of the time": {[]gpu.Seat{with(seated("a", resident, 50, 361*time.Second), slow), with(seated("b", suspended, 50, 0), slow)}, 0, "suspend a", "turn of 6m0s"},
		"higher priority comes":      {[]gpu.Seat{seated("a", resident, 50, 0), seated("b", suspended, 60, 0)}, 0, "suspend a", "higher priority"},
		"lower priority waits":       {[]gpu.Seat{seated("a", resident, 50, 40*time.Minute), seated("b", suspended, 40, 40*time.Minute)}, 0, "", ""},
		"but not for ever":           {[]gpu.Seat{seated("a", resident, 50, 3*time.Hour), seated("b", suspended, 40, time.Hour)}, 0, "suspend a", "another task has waited for 1h"},
		"and keeps its turn":         {[]gpu.Seat{with(seated("a", resident, 40, 20*time.Second), func(s *gpu.Seat) { s.Overdue = true }), seated("b", suspended, 50, 0)}, 0, "", ""},
		"who computes stays, who is idle leaves": {[]gpu.Seat{with(seated("a", resident, 60, 2*time.Minute), func(s *gpu.Seat) { s.LastUse = start.Add(-90 * time.Second) }),
			seated("b", suspended, 40, 0)}, 0, "suspend a", "not used the GPU for 1m30s"},
		"where nobody tells, nobody is idle":       {[]gpu.Seat{with(seated("a", resident, 60, time.Hour), func(s *gpu.Seat) { s.LastUse = time.Time{} }), seated("b", suspended, 40, 0)}, 0, "", ""},
		"an idle task has its trial later":         {[]gpu.Seat{with(seated("b", suspended, 50, 8*time.Minute), func(s *gpu.Seat) { s.Idle = true })}, 0, "", ""},
		"and then it has":                          {[]gpu.Seat{with(seated("b", suspended, 50, 10*time.Minute), func(s *gpu.Seat) { s.Idle = true })}, 0, "resume b", ""},
		"trials in vain become rarer":              {[]gpu.Seat{with(seated("b", suspended, 50, 30*time.Minute), func(s *gpu.Seat) { s.Idle, s.Trials = true, 2 })}, 0, "", ""},
		"a trial drives nobody out by priority":    {[]gpu.Seat{seated("a", resident, 50, 0), with(seated("b", suspended, 60, 20*time.Minute), func(s *gpu.Seat) { s.Idle = true })}, 0, "", ""},
		"who has waited longest comes":             {[]gpu.Seat{seated("b", suspended, 50, time.Minute), seated("a", suspended, 50, 0)}, 0, "resume b", ""},
		"the host's memory is full":                {[]gpu.Seat{seated("a", resident, 50, time.Minute), seated("b", suspended, 60, 0)}, 61 << 10, "", ""},
		"a task that starts has the GPU alone":     {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.MemoryMiB = 1 }), with(seated("b", waiting, 50, 0), func(s *gpu.Seat) { s.MemoryMiB, s.Switches = 0, 0 })}, 0, "", ""},
		"unless it says what it takes":             {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.MemoryMiB = 1 }), with(seated("b", waiting, 50, 0), func(s *gpu.Seat) { s.MemoryMiB, s.DeclaredMiB = 0, 60<<10 })}, 0, "resume b", ""},
		"nothing moves while a state is not known": {[]gpu.Seat{with(seated("a", resident, 50, time.Hour), func(s *gpu.Seat) { s.Unknown = true }), seated("b", suspended, 60, 0)}, 0, "", ""},
		"the smaller of two is enough": {[]gpu.Seat{with(seated("a", resident, 50, time.Minute), func(s *gpu.Seat) { s.MemoryMiB = 2 << 10 }), with(seated("c", resident, 50, 40*time.Second), func(s *gpu.Seat) { s.MemoryMiB = 60 << 10 }),
			seated("b", suspended, 50, 0)}, 0, "suspend c", ""},
		"who has grown drives the latest out":     {[]gpu.Seat{with(seated("a", resident, 50, time.Minute), func(s *gpu.Seat) { s.MemoryMiB = 45 << 10 }), seated("b", resident, 50, 0)}, 0, "suspend b", "have grown"},
		"what cannot be suspended is tried later": {[]gpu.Seat{with(seated("a", resident, 50, time.Hour), func(s *gpu.Seat) { s.Fixed, s.NotBefore = true, start.Add(1) }), seated("b", suspended, 60, 0)}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := Next(View{CapacityMiB: 80 << 10, HostMiB: tc.host, Seats: tc.seats}, rules, start)
			if got := strings.TrimSpace(string(m.Do) + " " + m.LeaseID); got != tc.want || !strings.Contains(m.Reason, tc.why) {
				t.Errorf("got %+v", m)
			}
		})
	}
}

// Who comes first, and who leaves, where several could.
func TestNextOfSeveral(t *testing.T) {
	const resident, suspended = gpu.SeatResident, gpu.SeatSuspended
	grown := func(s *gpu.Seat) { s.MemoryMiB = 45 << 10 }
	large := func(s *gpu.Seat) { s.MemoryMiB = 60 << 10 }
	idle := func(s *gpu.Seat) { s.MemoryMiB, s.LastUse = 10<<10, start.Add(-time.Minute) }
	small := func(s *gpu.Seat) { s.MemoryMiB = 10 << 10 }
	for name, tc := range map[string]struct {
		seats []gpu.Seat
		host  int64
		want  string
	}{
		"the overdue before the higher":      {[]gpu.Seat{with(seated("a", suspended, 90, time.Minute), large), with(seated("b", suspended, 10, time.Hour), large)}, 0, "resume b"},
		"whoever is first":                   {[]gpu.Seat{with(seated("b", suspended, 10, time.Hour), large), with(seated("a", suspended, 90, time.Minute), large)}, 0, "resume b"},
		"the longer of two overdue":          {[]gpu.Seat{seated("a", suspended, 90, time.Hour), seated("b", suspended, 10, 2*time.Hour)}, 0, "resume b"},
		"the first of two that came at once": {[]gpu.Seat{seated("b", suspended, 10, time.Hour), seated("a", suspended, 10, time.Hour)}, 0, "resume a"},
		"and of two that are not overdue":    {[]gpu.Seat{seated("b", suspended, 10, time.Minute), seated("a", suspended, 10, time.Minute)}, 0, "resume a"},
		"one of which a part is on the host": {[]gpu.Seat{seated("a", suspended, 90, time.Minute), with(seated("b", suspended, 10, 0), func(s *gpu.Seat) { s.Fixed = true })}, 0, "resume b"},
		"one that is tried later does not":   {[]gpu.Seat{seated("a", suspended, 40, 0), with(seated("b", suspended, 60, time.Minute), func(s *gpu.Seat) { s.NotBefore = start.Add(1) })}, 0, "resume a"},
		"one whose moment has come does":     {[]gpu.Seat{seated("a", suspended, 40, 0), with(seated("b", suspended, 60, time.Minute), func(s *gpu.Seat) { s.NotBefore = start })}, 0, "resume b"},
		"a second that finds room comes":     {[]gpu.Seat{seated("r", resident, 50, 0), with(seated("a", suspended, 50, time.Minute), large), with(seated("b", suspended, 50, 0), small)}, 0, "resume b"},
		"a second drives nobody out":         {[]gpu.Seat{with(seated("x", resident, 90, 0), func(s *gpu.Seat) { s.MemoryMiB = 65 << 10 }), with(seated("r", resident, 50, 0), small), with(seated("a", suspended, 60, time.Minute), large), with(seated("b", suspended, 55, 0), small)}, 0, ""},
		"the idle leave first":               {[]gpu.Seat{seated("a", resident, 10, time.Hour), with(seated("b", resident, 60, time.Hour), idle), with(seated("c", suspended, 60, 0), func(s *gpu.Seat) { s.MemoryMiB = 35 << 10 })}, 0, "suspend b"},
		"the lower before the longer":        {[]gpu.Seat{seated("a", resident, 50, time.Hour), with(seated("b", resident, 40, time.Minute), func(s *gpu.Seat) { s.MemoryMiB = 38 << 10 }), with(seated("c", suspended, 60, 0), small)}, 0, "suspend b"},
		"the longest turn of equals":         {[]gpu.Seat{with(seated("a", resident, 50, time.Minute), small), with(seated("b", resident, 50, time.Hour), small), with(seated("c", suspended, 50, 0), large)}, 0, "suspend b"},
		"nobody where all do not do":         {[]gpu.Seat{with(seated("a", resident, 50, time.Hour), small), with(seated("x", resident, 90, time.Hour), grown), with(seated("c", suspended, 50, 0), large)}, 0, ""},
		"the lowest of those that grew":      {[]gpu.Seat{with(seated("a", resident, 50, 0), grown), with(seated("b", resident, 40, time.Hour), grown)}, 0, "suspend b"},
		"the latest of equals that grew":     {[]gpu.Seat{with(seated("a", resident, 50, 0), grown), with(seated("b", resident, 50, time.Hour), grown)}, 0, "suspend a"},
		"the first of the latest":            {[]gpu.Seat{with(seated("b", resident, 50, 0), grown), with(seated("a", resident, 50, 0), grown)}, 0, "suspend a"},
		"not where the host is full":         {[]gpu.Seat{with(seated("a", resident, 50, 0), grown), with(seated("b", resident, 50, time.Hour), grown)}, 55<<10 + 1, ""},
		"but where it just has room":         {[]gpu.Seat{with(seated("a", resident, 50, 0), grown), with(seated("b", resident, 50, time.Hour), grown)}, 55 << 10, "suspend a"},
		"one alone stays, however grown":     {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.MemoryMiB = 90 << 10 }), with(seated("b", suspended, 10, 0), small)}, 0, ""},
		"one that is tried later stays":      {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { grown(s); s.NotBefore = start.Add(1) }), with(seated("b", resident, 50, time.Hour), grown)}, 0, "suspend b"},
		"one that was not measured stays":    {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.MemoryMiB, s.DeclaredMiB = 0, 45<<10 }), with(seated("b", resident, 50, time.Hour), grown)}, 0, "suspend b"},
		"those that just fit stay":           {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.DeclaredMiB = 40 << 10 }), with(seated("b", resident, 50, time.Hour), func(s *gpu.Seat) { s.DeclaredMiB = 40 << 10 })}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := Next(View{CapacityMiB: 80 << 10, HostMiB: tc.host, Seats: tc.seats}, rules, start)
			if got := strings.TrimSpace(string(m.Do) + " " + m.LeaseID); got != tc.want {
				t.Errorf("got %+v", m)
			}
		})
	}
}

// What a task asks for itself: it leaves at once, and comes back no more often than
// switching may take, so that it cannot hold up its neighbors.
func TestNextByTheTasksOwnWish(t *testing.T) {
	const resident, suspended, waiting = gpu.SeatResident, gpu.SeatSuspended, gpu.SeatWaiting
	small := func(s *gpu.Seat) { s.MemoryMiB, s.OutMS, s.InMS = 10<<10, 5000, 5000 }
	wants := func(s *gpu.Seat) { small(s); s.Yielded = true }
	idle := func(s *gpu.Seat) { small(s); s.Yielded, s.Idle, s.Trials = true, true, 1 }
	for name, tc := range map[string]struct {
		seats []gpu.Seat
		host  int64
		want  string
	}{
		"it leaves at once":              {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.Yield = true })}, 0, "suspend a"},
		"unless the host has no room":    {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.Yield = true })}, 70 << 10, ""},
		"or it cannot now":               {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.Yield, s.Fixed, s.NotBefore = true, true, start.Add(1) })}, 0, ""},
		"it stays away":                  {[]gpu.Seat{with(seated("a", suspended, 50, 2*time.Minute), idle)}, 0, ""},
		"until its trial":                {[]gpu.Seat{with(seated("a", suspended, 50, 30*time.Minute), idle)}, 0, "resume a"},
		"beside a neighbor it is paced":  {[]gpu.Seat{seated("b", resident, 50, time.Hour), with(seated("a", suspended, 50, 80*time.Second), wants)}, 0, ""},
		"by what switching costs":        {[]gpu.Seat{seated("b", resident, 50, time.Hour), with(seated("a", suspended, 50, 90*time.Second), wants)}, 0, "resume a"},
		"of all seats together":          {[]gpu.Seat{seated("b", resident, 50, time.Hour), with(seated("a", suspended, 50, 90*time.Second), wants), with(seated("c", suspended, 50, 100*time.Second), wants)}, 0, ""},
		"alone it comes soon":            {[]gpu.Seat{with(seated("a", suspended, 50, 10*time.Second), wants)}, 0, "resume a"},
		"who waits does not wait for it": {[]gpu.Seat{with(seated("a", resident, 50, 0), func(s *gpu.Seat) { s.Yield = true }), seated("b", waiting, 50, 0)}, 0, "suspend a"},
		"who wants is not idle": {[]gpu.Seat{with(seated("a", resident, 60, 2*time.Minute), func(s *gpu.Seat) { s.LastUse, s.WantedAt = start.Add(-90*time.Second), start.Add(-time.Second) }),
			seated("b", suspended, 40, 0)}, 0, ""},
		"and loses its turn all the same": {[]gpu.Seat{with(seated("a", resident, 50, 2*time.Minute), func(s *gpu.Seat) { s.WantedAt = start }), seated("b", suspended, 50, 0)}, 0, "suspend a"},
	} {
		t.Run(name, func(t *testing.T) {
			m := Next(View{CapacityMiB: 80 << 10, HostMiB: tc.host, Seats: tc.seats}, rules, start)
			if got := strings.TrimSpace(string(m.Do) + " " + m.LeaseID); got != tc.want {
				t.Errorf("got %+v", m)
			}
		})
	}
}

func TestQueue(t *testing.T) {
	mine := seated("mine", gpu.SeatSuspended, 50, time.Minute)
	all := []gpu.Seat{mine, seated("resident", gpu.SeatResident, 90, 0), seated("higher", gpu.SeatWaiting, 60, 0), seated("longer", gpu.SeatSuspended, 50, time.Hour),
		seated("shorter", gpu.SeatSuspended, 50, 0), with(seated("idle", gpu.SeatSuspended, 90, time.Hour), func(s *gpu.Seat) { s.Idle = true })}
	if waiting, ahead := Queue(all, mine); waiting != 3 || ahead != 2 {
		t.Errorf("got %d waiting, %d ahead", waiting, ahead)
	}
	all[1].Priority = 10
	if waiting, ahead := Queue(all, all[1]); waiting != 4 || ahead != 0 {
		t.Errorf("got %d waiting, %d ahead of a resident", waiting, ahead)
	}
}
