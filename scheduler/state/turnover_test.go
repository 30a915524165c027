// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// turnover takes which allocs came and went, those that went with whether Nomad said that they
// ended and when that was.
func turnover(s *servicetest.Service) (came, went []string) {
	s.State.Do(func(tx *state.Tx) {
		in, out := tx.TakeTurnover()
		for _, a := range in {
			came = append(came, a.ID)
		}
		for _, a := range out {
			went = append(went, fmt.Sprintf("%s %s at %s", a.ID, a.Status, a.Ended.Sub(a.Created)))
		}
	})
	return came, went
}

// Each alloc with GPUs comes and goes once, in the order in which they were made, from when that
// is asked for on; what is on a node that is not known yet comes when it is.
func TestWhatCameAndWent(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	want := func(when string, came, went []string) {
		t.Helper()
		if in, out := turnover(s); !slices.Equal(in, came) || !slices.Equal(out, went) {
			t.Errorf("%s: came %q, want %q; went %q, want %q", when, in, came, out, went)
		}
	}
	s.Tenant(t, "first", 50, "a", 0, 0, 1)
	want("it is not followed", nil, nil)
	s.State.FollowTurnover()
	want("what was there", []string{"alloc-first"}, nil)
	want("once", nil, nil)
	s.Pass(time.Minute)
	s.Tenant(t, "z", 50, "a", 0, 1, 1)
	s.Pass(time.Minute)
	s.Tenant(t, "y", 50, "a", 0, 2, 1)
	s.Tenant(t, "x", 50, "a", 0, 3, 1)
	s.Run(servicetest.Ask("plain", "1G", 1), "alloc-plain", "a", 0, 0, 0)
	s.Run(servicetest.Ask("late", "1G", 1), "alloc-late", "b", 0, 0, 1)
	want("by age, then by ID", []string{"alloc-z", "alloc-x", "alloc-y"}, nil)
	s.Pass(time.Minute)
	s.End("alloc-y")
	s.End("alloc-plain")
	s.State.Apply([]nomad.Change{{AllocGone: "alloc-z"}, {AllocGone: "alloc-x"}}, 99)
	want("what went", nil, []string{"alloc-z running at 2m0s", "alloc-x running at 1m0s", "alloc-y complete at 1m0s"})
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, 99)
	want("its node is known", []string{"alloc-late"}, nil)
	s.Run(servicetest.Ask("brief", "1G", 1), "alloc-brief", "c", 0, 0, 1)
	s.End("alloc-brief")
	want("it ended before its node was known", []string{"alloc-brief"}, []string{"alloc-brief complete at 0s"})
	want("nothing more", nil, nil)
}

// What a task holds is told by GPU, and of those that its node lists: memory that is its own is
// told of parts, and not where tasks take turns.
func TestWhatAnAllocHolds(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.SeatMachine("s", 0, 1, 50))
	s.Run(servicetest.Ask("both", "1G", 1), "both", "a", 0, 0, 4)
	a := s.Alloc("both")
	a.Devices[0].IDs = append(a.Devices[0].IDs, servicetest.Instance("a", 1, 0), servicetest.Instance("a", 1, 1), "GPU-of-another-node::0")
	holdings := func(a *nomad.Alloc) (list []string) {
		for _, h := range read(s, func(r *state.Reader) []state.Holding { return r.Capacity.Holdings(a) }) {
			list = append(list, fmt.Sprintf("%s has %d of %s at %d: %d milli, %d MiB, alone %v", h.Task, len(h.Instances), h.GPU.ID, h.Position, h.Milli, h.MemoryMiB, h.Alone()))
		}
		return list
	}
	want := []string{"t has 4 of GPU-a-0 at 0: 250 milli, 4096 MiB, alone false", "t has 2 of GPU-a-1 at 1: 125 milli, 2048 MiB, alone false"}
	if got := holdings(&a); !slices.Equal(got, want) {
		t.Errorf("it holds\n%q, want\n%q", got, want)
	}
	s.Run(servicetest.Ask("all", "16G", 1), "all", "a", 0, 0, 16)
	all := s.Alloc("all")
	if got := holdings(&all); !slices.Equal(got, []string{"t has 16 of GPU-a-0 at 0: 1000 milli, 16384 MiB, alone true"}) {
		t.Errorf("all of a GPU is %q", got)
	}
	s.Run(servicetest.Ask("seat", "1G", 1), "seat", "s", 0, 0, 1)
	seat := s.Alloc("seat")
	if got := read(s, func(r *state.Reader) []state.Holding { return r.Capacity.Holdings(&seat) }); len(got) != 1 || got[0].MemoryMiB != 0 || got[0].Alone() {
		t.Errorf("a seat is %+v", got)
	}
	a.NodeID = "unknown"
	if got := holdings(&a); got != nil {
		t.Errorf("on an unknown node it holds %q", got)
	}
}

// What a task uses is what was measured of it, or of its GPU where it is alone there.
func TestWhoseUseAMeasurementIs(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	m := nomad.NewMeasurements()
	m.Tasks["i"] = nomad.TaskUse{Milli: 7, MemoryMiB: 8}
	m.GPUs["g"] = view.Measured{At: s.Clock.At, Milli: 70, MemoryMiB: 80}
	s.State.Measured("id-a", m)
	for _, row := range []struct {
		node, uuid, instance string
		alone                bool
		want                 int64 // milli; -1: not known
	}{{"id-a", "g", "i", true, 7}, {"id-a", "g", "i", false, 7}, {"id-a", "g", "j", true, 70}, {"id-a", "g", "j", false, -1}, {"id-a", "h", "j", true, -1}, {"id-b", "g", "i", true, -1}} {
		s.State.View(func(r *state.Reader) {
			use, known := r.Cluster.UseOf(row.node, row.uuid, row.instance, row.alone)
			if known != (row.want >= 0) || known && (use.Milli != row.want || use.MemoryMiB != row.want/7*8) {
				t.Errorf("%+v: %+v, %v", row, use, known)
			}
		})
	}
}

// hot are the GPUs that have been hot for so long.
func hot(s *servicetest.Service, long time.Duration) (list []string) {
	for id, is := range read(s, func(r *state.Reader) map[string]bool { return r.Cluster.HotGPUs(long) }) {
		if is {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// A GPU is hot from the first measurement on that shows it busy, until one shows that it is not, or
// none was made for a while.
func TestWhichGPUsAreHot(t *testing.T) {
	s := servicetest.New(t, "monitor_update_interval = \"1m\"\n", servicetest.Machine("a", 2))
	measure := func(first, second int64) {
		m := nomad.NewMeasurements()
		m.GPUs["GPU-a-0"], m.GPUs["GPU-a-1"] = view.Measured{At: s.Clock.At, Milli: first}, view.Measured{At: s.Clock.At, Milli: second}
		s.State.Measured("id-a", m)
	}
	want := func(when string, long time.Duration, ids ...string) {
		t.Helper()
		if got := hot(s, long); !slices.Equal(got, ids) {
			t.Errorf("%s: hot for %s are %q, want %q", when, long, got, ids)
		}
	}
	measure(place.CoolMilli+1, place.CoolMilli)
	want("at once", 0, "GPU-a-0")
	want("at once", time.Second)
	s.Pass(time.Minute)
	measure(place.CoolMilli+1, place.CoolMilli+1)
	want("a minute later", time.Minute, "GPU-a-0")
	want("a minute later", 0, "GPU-a-0", "GPU-a-1")
	want("a minute later", time.Minute+1)
	s.Pass(time.Minute)
	measure(place.CoolMilli, place.CoolMilli+1)
	want("one cooled down", time.Minute, "GPU-a-1")
	s.Pass(time.Hour)
	want("it was not measured", 0)
	measure(0, place.CoolMilli+1)
	want("it is hot anew", 0, "GPU-a-1")
	want("it is hot anew", time.Second)
}
