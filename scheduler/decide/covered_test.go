// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Where Nomad chooses the GPU of an alloc, which knows of no compute, it holds the slices that go
// with its compute; that is recorded, and stays so.
func TestComputeIsCoveredWhereNomadChooses(t *testing.T) {
	for name, row := range map[string]struct {
		request string
		change  func(*admit.Ask)
		slices  int64
	}{
		"one alloc":         {"4G,0.5", func(*admit.Ask) {}, 4},
		"several":           {"4G,0.5", func(a *admit.Ask) { a.Count = 2 }, 8},
		"each node":         {"4G,0.5", func(a *admit.Ask) { a.JobType = "system" }, 8},
		"each node, once":   {"4G,0.5", func(a *admit.Ask) { a.JobType = "sysbatch" }, 8},
		"later":             {"4G,0.5", func(a *admit.Ask) { a.JobType, a.Later = "batch", true }, 8},
		"several of memory": {"4G", func(a *admit.Ask) { a.Count = 2 }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			a := servicetest.Ask("job", row.request, 1)
			row.change(&a)
			for range 2 { // the second time it is known
				d := s.Submit(t, a)
				if got := d.Tasks[0].Devices[0].Count; got != row.slices || recorded(s, a).Covered != (row.slices == 8) {
					t.Errorf("it holds %d slices, covered %v", got, recorded(s, a).Covered)
				}
				s.Register(a)
			}
		})
	}
}

// Memory alone is looked for in instances: a fraction is a part of a GPU, a number is whole GPUs,
// and the smallest that will do is taken.
func TestWhatIsLookedForInInstances(t *testing.T) {
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	n := &api.Node{ID: "id-m", Name: "m", NodePool: "default", Status: "ready", SchedulingEligibility: "eligible",
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}}}
	for profile, gib := range map[string]int64{"1g.10gb": 10, "3g.40gb": 40, "7g.80gb": 80} {
		n.NodeResources.Devices = append(n.NodeResources.Devices, &api.NodeDeviceResource{
			Vendor: "nvidia", Type: "mig", Name: profile, Instances: []*api.NodeDevice{{ID: "MIG-" + profile, Healthy: true}},
			Attributes: map[string]*api.Attribute{"model": word("NVIDIA A100-SXM4-80GB"), "type": word("A100"), "memory": number(gib*1024, "MiB"), "profile": word(profile)},
		})
	}
	for request, want := range map[string]string{
		"1G": "1g.10gb", "10G": "1g.10gb", "11G": "3g.40gb", "40G": "3g.40gb", "41G": "7g.80gb", "80G": "7g.80gb", "81G": "", "0.5": "", "2": "", "10G(H100)": "",
	} {
		s := servicetest.New(t, "", nomad.NewNode(n, nomad.Hardware{}))
		d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", request, 1)}, true)
		var refusal *admit.Refusal
		switch {
		case want == "" && (!errors.As(err, &refusal) || refusal.Status != 422):
			t.Errorf("%s: %+v, %v", request, d, err)
		case want != "" && (err != nil || d[0].Tasks[0].Devices[0].Name != "nvidia/mig/"+want || d[0].Tasks[0].Devices[0].Count != 1):
			t.Errorf("%s: %+v, %v", request, d, err)
		}
	}
}

// What is held and was scaled down around the service is let go when what is left of it fits.
func TestWhatShrankWouldStart(t *testing.T) {
	for registeredAs, want := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		for _, isGang := range []bool{true, false} {
			s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
			for i := range 2 {
				s.Tenant(t, fmt.Sprint("tenant-", i), 90, "a", i, 0, 16)
			}
			a := servicetest.Ask("job", "1", 3)
			a.Gang = isGang
			if d := s.Submit(t, a); d.Hold == nil {
				t.Fatal("it does not wait")
			}
			s.Register(a)
			registered(s, a, func(j *nomad.Job) { j.Groups[0].Count = registeredAs })
			s.Block(a, registeredAs)
			s.LetTimePass()
			g := recorded(s, a)
			var would bool
			s.State.Do(func(tx *state.Tx) { would = decide.WouldStart(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx)) })
			if would != want || len(s.AllAssumed()) != 0 {
				t.Errorf("%d of a gang (%v): %v, want %v; %v", registeredAs, isGang, would, want, s.AllAssumed())
			}
		}
	}
}

// What a task is told that it has is what its blocks hold, on the GPU where it goes.
func TestWhatATaskHolds(t *testing.T) {
	for request, want := range map[string]framework.Share{
		"4G":     {GPUs: 1, MemoryMiB: 4 << 10, Vendor: "nvidia", Type: "T4"},
		"0.5":    {GPUs: 1, MemoryMiB: 8 << 10, Vendor: "nvidia", Type: "T4"},
		"1":      {GPUs: 1, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"16G":    {GPUs: 1, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"2":      {GPUs: 2, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"4G,0.5": {GPUs: 1, MemoryMiB: 4 << 10, Vendor: "nvidia", Type: "T4"},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		if got := s.Submit(t, servicetest.Ask("job", request, 1)).Tasks; len(got) != 1 || got[0].Task != "t" || got[0].Holds != want {
			t.Errorf("%s: %+v, want %+v", request, got, want)
		}
	}
}

// What a queue allows is told to whoever asks for what no node there can hold: each of its rules.
func TestTheRulesOfAQueueAreTold(t *testing.T) {
	s := servicetest.New(t, `queue "q" {
  gpus        = 1
  namespaces  = ["default"]
  datacenters = ["dc1", "dc2"]
  constraint {
    attribute = "meta.rack"
    value     = "r1"
  }
  constraint {
    attribute = "meta.fast"
    operator  = "is_set"
  }
}`, servicetest.Machine("a", 1))
	_, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "1", 1)}, true)
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Details[len(refusal.Details)-1] != "queue q may use only datacenter dc1 or dc2, nodes with meta.rack = r1, nodes with meta.fast is_set" {
		t.Errorf("got %v", err)
	}
}

// Nothing is said of what would fit in place of what asks in several blocks, starts later, or has a
// reservation.
func TestOfWhatNothingSmallerIsSaid(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*admit.Ask)
		said   bool
	}{
		"one request":   {func(*admit.Ask) {}, true},
		"a reservation": {func(a *admit.Ask) { a.Reservation = "r-1" }, false},
		"two tasks":     {func(a *admit.Ask) { second(a, "1G") }, false},
		"a choice":      {func(a *admit.Ask) { choice(a) }, false},
		"no choice":     {func(a *admit.Ask) { choice(a); a.Tasks[0].Devices[0].Or = nil }, true},
		"two blocks": {func(a *admit.Ask) {
			choice(a)
			a.Tasks[0].Devices[0].Or = nil
			a.Tasks[0].Devices = append(a.Tasks[0].Devices, a.Tasks[0].Devices[0])
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			s.Tenant(t, "tenant", 90, "a", 0, 0, 8)
			a := servicetest.Ask("job", "12G", 1)
			waits(t, s, a)
			row.change(&a)
			s.State.Do(func(tx *state.Tx) {
				r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
				g := r.Groups["g"]
				g.Ask = a
				r.Groups["g"] = g
				tx.Keep(r)
			})
			if got := fits(t, s)["job"]; (got != nil) != row.said {
				t.Errorf("it is told %+v", got)
			}
		})
	}
}

// choice makes an ask one for a device block with an alternative.
func choice(a *admit.Ask) {
	a.Tasks[0] = admit.TaskAsk{Task: "t", Driver: "docker", Devices: []admit.DeviceAsk{{Name: "nvidia/slice", Count: 12, Or: []admit.DeviceAsk{{Name: "nvidia/slice", Count: 11}}}}}
}

// For a gang that may start with fewer, what would fit is said of as many as must start.
func TestWhatWouldFitForAGangThatMayBeSmaller(t *testing.T) {
	for least, want := range map[int]int{0: 4, 2: 2} {
		s := servicetest.New(t, "", servicetest.Machine("a", 4))
		for i := range 3 {
			s.Tenant(t, fmt.Sprint("tenant-", i), 90, "a", i, 0, 16)
		}
		a := servicetest.Ask("job", "12G", 4)
		a.Gang, a.GangMin = true, least
		waits(t, s, a)
		if got := fits(t, s)["job"]; got == nil || got.Allocs != want || got.Ask == "" {
			t.Errorf("at least %d: %+v", least, got)
		}
	}
}

// A dry run says when it would start of what has to wait for room, and of nothing else.
func TestAPlanSaysWhenItWouldStart(t *testing.T) {
	const says = "that wait"
	for name, row := range map[string]struct {
		config string
		free   bool
		change func(*admit.Ask)
		want   bool
	}{
		"it waits for room":  {"", false, func(*admit.Ask) {}, true},
		"there is room":      {"", true, func(*admit.Ask) {}, false},
		"it waits for quota": {"queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}\n", false, func(*admit.Ask) {}, false},
		"it starts later":    {"", false, func(a *admit.Ask) { a.JobType, a.Later = "batch", true }, false},
	} {
		s := servicetest.New(t, row.config, servicetest.Machine("a", 1))
		if !row.free {
			s.Tenant(t, "tenant", 90, "a", 0, 0, 16)
		}
		s.Pass(time.Minute)
		a := servicetest.Ask("job", "8G", 1)
		row.change(&a)
		d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
		if err != nil || strings.Contains(strings.Join(d[0].Explanation, "\n"), says) != row.want {
			t.Errorf("%s: %q, %v", name, d[0].Explanation, err)
		}
	}
}

// A gang of which one alloc runs keeps its blocks when it is registered otherwise; one of which
// none does is decided about again, all of it.
func TestAGangIsAlignedWhileItRuns(t *testing.T) {
	for running, asked := range map[int]int64{0: 8, 1: 9, 2: 9} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := gang("gang", 2, 50)
		a.Tasks[0].Request = servicetest.Ask("x", "8G", 1).Tasks[0].Request
		s.Submit(t, a)
		s.Register(a)
		for i := range running {
			s.Run(a, fmt.Sprint("alloc-", i), "a", i, 0, 9)
		}
		was := servicetest.WasOf(recorded(s, a).Decision)
		was.Tasks = []admit.TaskDecision{{Task: "t", Devices: []admit.Device{{Name: "nvidia/slice", Count: 9}}}}
		asks := []admit.Ask{a}
		asks[0].Was = was
		if _, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Align: true}); err != nil {
			t.Fatal(err)
		}
		if got := recorded(s, a).Decision.Tasks[0].Devices[0].Count; got != asked {
			t.Errorf("%d run: its blocks are of %d slices, want %d", running, got, asked)
		}
	}
}

// Where a group of a gang that waits leaves out a node, or prefers one, the others do not.
func TestOneGroupOfAGangIsRevisedAlone(t *testing.T) {
	for name, r := range map[string]decide.Revision{
		"leaves out": {Group: "g", Exclude: []string{"id-a"}, For: "default/other"},
		"prefers":    {Group: "g", Prefer: "id-b"},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
		g, h := gang("gang", 1, 50), gang("gang", 1, 50)
		h.Group = "h"
		asks := []admit.Ask{g, h}
		d, err := s.Decide(t.Context(), asks, false)
		if err != nil {
			t.Fatal(err)
		}
		s.Settle(t.Context(), asks, d, true)
		before := s.Record(servicetest.KeyOf(g)).Groups["h"]
		if _, err := s.Revise(t.Context(), asks, r); err != nil {
			t.Fatal(err)
		}
		same := func(group string) bool {
			after := s.Record(servicetest.KeyOf(g)).Groups[group]
			return maps.Equal(before.Excluded, after.Excluded) && slices.Equal(before.Decision.Preferred, after.Decision.Preferred)
		}
		if same("g") || !same("h") {
			t.Errorf("%s: %+v", name, s.Record(servicetest.KeyOf(g)).Groups)
		}
	}
}
