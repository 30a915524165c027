// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// sampled shows what the task of an instance was measured to use, and what its GPU does.
func sampled(s *servicetest.Service, use nomad.TaskUse, gpuMilli int64) {
	m := nomad.NewMeasurements()
	use.At = s.Clock.At
	if use.MemoryMiB != view.Unmeasured || use.Milli != view.Unmeasured || use.Seat != "" {
		m.Tasks[servicetest.Instance("a", 0, 0)] = use
	}
	m.GPUs["GPU-a-0"] = view.Measured{At: s.Clock.At, Milli: gpuMilli, MemoryMiB: 100}
	s.State.Measured("id-a", m)
}

// unusedSince is since when the only task has not used its GPU.
func unusedSince(s *servicetest.Service) (at time.Time) {
	s.State.View(func(r *state.Reader) {
		a := r.Cluster.Alloc("alloc-tenant")
		at = r.Cluster.UnusedSince(a, &r.Capacity.Holdings(a)[0])
	})
	return at
}

// A task is idle from the first measurement on that saw no use, and no longer once one saw
// some, was not made, or tells nothing.
func TestWhatIsNotUsed(t *testing.T) {
	const unknown = view.Unmeasured
	type sample struct {
		use nomad.TaskUse
		gpu int64
	}
	none := sample{nomad.TaskUse{MemoryMiB: 500}, 700}
	for name, row := range map[string]struct {
		slices  int
		samples []sample // one a minute; the last is now
		minutes int      // that it has been idle; -1: it is not
	}{
		"nothing is used":                     {4, []sample{none, none, none}, 2},
		"it computes":                         {4, []sample{none, none, {nomad.TaskUse{Milli: 1, MemoryMiB: 500}, 700}}, -1},
		"it did":                              {4, []sample{none, {nomad.TaskUse{Milli: 1, MemoryMiB: 500}, 700}, none, none}, 1},
		"it takes memory":                     {4, []sample{none, {nomad.TaskUse{MemoryMiB: 501}, 700}}, -1},
		"it gives memory back":                {4, []sample{none, {nomad.TaskUse{MemoryMiB: 499}, 700}}, 1},
		"nothing was ever measured":           {4, []sample{{nomad.TaskUse{Milli: unknown, MemoryMiB: unknown}, 0}}, -1},
		"compute is not told, it has memory":  {4, []sample{{nomad.TaskUse{Milli: unknown, MemoryMiB: 9}, 0}}, -1},
		"compute is not told, it has none":    {4, []sample{{nomad.TaskUse{Milli: unknown}, 700}, {nomad.TaskUse{Milli: unknown}, 700}}, 1},
		"alone on a GPU that does nothing":    {16, []sample{{nomad.TaskUse{Milli: unknown, MemoryMiB: 9}, 0}, {nomad.TaskUse{Milli: unknown, MemoryMiB: 9}, 0}}, 1},
		"alone on one that does something":    {16, []sample{{nomad.TaskUse{Milli: unknown, MemoryMiB: 9}, 0}, {nomad.TaskUse{Milli: unknown, MemoryMiB: 9}, 3}}, -1},
		"alone, and only the GPU is measured": {16, []sample{{nomad.TaskUse{Milli: unknown, MemoryMiB: unknown}, 0}, {nomad.TaskUse{Milli: unknown, MemoryMiB: unknown}, 0}}, 1},
		"suspended while it computed":         {4, []sample{none, {nomad.TaskUse{Seat: gpu.SeatSuspended}, 0}}, -1},
		"it waits for its first turn":         {4, []sample{{nomad.TaskUse{Seat: gpu.SeatWaiting}, 0}}, -1},
		"suspended for it, and tried in vain": {4, []sample{none, {nomad.TaskUse{Seat: gpu.SeatSuspending}, 0}, {nomad.TaskUse{Seat: gpu.SeatIdle}, 0}, {nomad.TaskUse{Seat: gpu.SeatResuming, MemoryMiB: 20}, 0}}, 3},
		"tried in vain, with its memory":      {4, []sample{none, {nomad.TaskUse{Seat: gpu.SeatIdle}, 0}, {nomad.TaskUse{Seat: gpu.SeatResident, MemoryMiB: 500}, 0}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "monitor_update_interval = \"1m\"\n", servicetest.Machine("a", 1))
			s.Tenant(t, "tenant", 50, "a", 0, 0, row.slices)
			for n, one := range row.samples {
				if n > 0 {
					s.Pass(time.Minute)
				}
				sampled(s, one.use, one.gpu)
			}
			got := -1
			if at := unusedSince(s); !at.IsZero() {
				got = int(s.Clock.At.Sub(at).Minutes())
			}
			if got != row.minutes {
				t.Errorf("idle for %d minutes, want %d", got, row.minutes)
			}
		})
	}
}

// What is not measured for some time is not known to be idle, then or before.
func TestNobodyIsIdleUnseen(t *testing.T) {
	s := servicetest.New(t, "monitor_update_interval = \"1m\"\n", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
	sampled(s, nomad.TaskUse{}, 0)
	s.Pass(2*time.Minute + 10*time.Second)
	if unusedSince(s).IsZero() {
		t.Error("one measurement may be missing")
	}
	s.Pass(time.Second)
	if at := unusedSince(s); !at.IsZero() {
		t.Errorf("idle since %s, and not measured for longer", at)
	}
	sampled(s, nomad.TaskUse{}, 0)
	if at := unusedSince(s); !at.Equal(s.Clock.At) {
		t.Errorf("idle since %s: what was before is not known", at)
	}
	// A plugin that repeats an old measurement tells nothing new.
	for range 4 {
		s.Pass(time.Minute)
		m := nomad.NewMeasurements()
		m.Tasks[servicetest.Instance("a", 0, 0)] = nomad.TaskUse{At: s.Clock.At.Add(-time.Hour)}
		s.State.Measured("id-a", m)
	}
	if at := unusedSince(s); !at.IsZero() {
		t.Errorf("idle since %s by an old measurement", at)
	}
	s.End("alloc-tenant")
	s.State.Apply([]nomad.Change{{NodeGone: "id-a"}}, s.Index+1)
}

// Whatever is measured and whenever: a task that is called idle since some time computed
// nothing at any measurement since then, and no measurement was missing for long.
func TestIdleIsNeverSaidOfWhatWasUsed(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 15))
		s := servicetest.New(t, "monitor_update_interval = \"30s\"\n", servicetest.Machine("a", 1))
		s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
		quiet, last := time.Time{}, time.Time{} // by the test's own account
		for range 40 {
			s.Pass(time.Duration(1+random.IntN(100)) * time.Second)
			use := nomad.TaskUse{MemoryMiB: 7}
			if random.IntN(4) == 0 {
				use.Milli = int64(random.IntN(3))
			}
			if !last.IsZero() && s.Clock.At.Sub(last) > 70*time.Second {
				quiet = time.Time{}
			}
			sampled(s, use, 0)
			last = s.Clock.At
			switch {
			case use.Milli > 0:
				quiet = time.Time{}
			case quiet.IsZero():
				quiet = s.Clock.At
			}
			if got := unusedSince(s); !got.Equal(quiet) {
				t.Fatalf("seed %d: idle since %s, want %s", seed, got, quiet)
			}
		}
	}
}

// What does not run is not idle, whatever it holds.
func TestWhatDoesNotRunIsNotIdle(t *testing.T) {
	s := servicetest.New(t, "monitor_update_interval = \"1m\"\n", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
	a := s.Alloc("alloc-tenant")
	s.Index++
	a.Index, a.Status = s.Index, "pending"
	s.State.Apply([]nomad.Change{{Alloc: &a}}, s.Index)
	sampled(s, nomad.TaskUse{}, 0)
	s.Pass(time.Minute)
	sampled(s, nomad.TaskUse{}, 0)
	if at := unusedSince(s); !at.IsZero() {
		t.Errorf("it is pending, and idle since %s", at)
	}
}

// Work that its queue calls idle is booked so while it is, and as other work once it is not.
func TestIdleWorkIsBookedSo(t *testing.T) {
	s := servicetest.New(t, "monitor_update_interval = \"1m\"\nqueue \"q\" {\n namespaces = [\"default\"]\n idle_after = \"10m\"\n idle_action = \"evict\"\n}\n", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
	booked := func() bool {
		s.State.Do(func(tx *state.Tx) { tx.CheckIdle() })
		list := read(s, func(r *state.Reader) []place.Usage { return r.Capacity.UsagesOn("id-a") })
		if len(list) != 1 {
			t.Fatalf("%d are booked", len(list))
		}
		return list[0].Idle
	}
	for minute := range 13 {
		use := nomad.TaskUse{}
		if minute == 12 {
			use.Milli = 5
		}
		sampled(s, use, 0)
		if got, want := booked(), minute == 10 || minute == 11; got != want {
			t.Errorf("after %d minutes it is booked as idle: %v, want %v", minute, got, want)
		}
		s.Pass(time.Minute)
	}
}
