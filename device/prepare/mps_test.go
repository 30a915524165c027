// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
)

// statusDaemons give every device the same status.
type statusDaemons struct {
	Daemons
	status mps.Status
}

func (d statusDaemons) Want([]mps.Spec)          {}
func (d statusDaemons) Status(string) mps.Status { return d.status }
func (d statusDaemons) Server(int) bool          { return false }

// What a daemon says of itself decides about its device: a fault, a cordon for new
// work, or neither.
func TestStatusOfADaemonIsThatOfItsDevice(t *testing.T) {
	ready := mps.Status{Ready: true, Settled: true, Generation: 2, PipeDir: "/p", ControlDir: "/c", GateDir: "/g", LogDir: "/l", ShmDir: "/s", Server: mps.ServerActive, MultiUser: true}
	with := func(change func(*mps.Status)) mps.Status { s := ready; change(&s); return s }
	for name, tc := range map[string]struct {
		status         mps.Status
		clients, tasks int
		fault, cordon  string
		users          string
		unsettled      bool
	}{
		"ready":              {ready, 47, 47, "", "", "any", false},
		"one user":           {with(func(s *mps.Status) { s.MultiUser = false }), 0, 0, "", "", "one", false},
		"never seen":         {with(func(s *mps.Status) { s.Generation, s.Ready, s.Reason = 0, false, "it is being started" }), 0, 0, "it is being started; read the logs in /l", "", "", false},
		"unsettled":          {with(func(s *mps.Status) { s.Settled = false }), 0, 0, "", "", "any", true},
		"not ready":          {with(func(s *mps.Status) { s.Ready, s.Reason, s.Action = false, "it died", "wait" }), 0, 0, "it died; wait", "", "any", false},
		"a fault":            {with(func(s *mps.Status) { s.Ready, s.Server, s.Reason = false, mps.ServerFault, "client 5" }), 0, 0, "", "takes no new clients: client 5", "any", false},
		"initializing":       {with(func(s *mps.Status) { s.Ready, s.Server, s.Reason = false, mps.ServerInitializing, "it starts" }), 0, 0, "", "takes no new clients: it starts", "any", false},
		"as many clients":    {ready, 48, 0, "", "all 48 clients that its MPS server can have are there", "any", false},
		"more clients":       {ready, 49, 0, "", "all 48 clients", "any", false},
		"as many tasks":      {ready, 0, 48, "", "can have 48 clients, and as many tasks hold a part", "any", false},
		"not ready and full": {with(func(s *mps.Status) { s.Ready, s.Reason = false, "it died" }), 48, 48, "it died", "", "any", false},
	} {
		h := &releasable{on: map[string][]hardware.Process{}}
		h.on[testUUID(0)] = []hardware.Process{{PID: 1}} // no client
		for n := range tc.clients {
			h.on[testUUID(0)] = append(h.on[testUUID(0)], hardware.Process{PID: 10 + n, MPS: true})
		}
		p := testPreparer(t, testConfig(t, sliced), &fleet.Platform{Observer: h}, statusDaemons{status: tc.status})
		known := testRegistry()
		inputs := quiet()
		inputs.Tasks = map[string]int{testUUID(0): tc.tasks}
		for _, byHand := range []string{"", "new fan"} {
			inputs.Cordons[testUUID(0)] = byHand
			u := plan.Units(p.Config, known, testMachine(1), inputs)[0]
			p.prepareMPS([]*plan.Unit{u}, inputs)
			fault := ""
			if len(u.Faults) > 0 {
				fault = u.Faults[0].Code + ": " + u.Faults[0].String()
			}
			if (fault == "") != (tc.fault == "") || !strings.Contains(fault, tc.fault) {
				t.Errorf("%s: fault %q, want %q", name, fault, tc.fault)
			}
			want := tc.cordon
			if byHand != "" {
				want = byHand // what an operator says stands
			}
			if (u.Cordon == "") != (want == "") || !strings.Contains(u.Cordon, want) {
				t.Errorf("%s: cordon %q, want %q", name, u.Cordon, want)
			}
			if m := u.MPS; m.Users != tc.users || m.MaxClients != 48 || fmt.Sprint(m.PipeDir, m.ControlDir, m.GateDir, m.LogDir, m.ShmDir, m.Generation) != fmt.Sprint("/p/c/g/l/s", tc.status.Generation) || u.Unsettled != tc.unsettled {
				t.Errorf("%s: the driver is told %+v", name, m)
			}
		}
	}
}

// The daemon's own limits are the most that a task may have.
func TestLimitsOfADaemonAreThoseOfItsDevice(t *testing.T) {
	for config, want := range map[string]string{
		sliced:                                      "80896 100",
		sliced + "compute_burst = 400":              "80896 40",
		sliced + "compute_burst = 5":                "80896 1",
		sliced + "slice_memory = \"4GiB\"":          "77824 100",
		"mode = \"shared\"\nsharing = \"mps\"\n":    "0 100",
		sliced + "headroom = \"10GiB\"":             "70656 100",
		sliced + "compute_burst = 991\n":            "80896 100", // rounded as a task's own limit is
		sliced + "compute_burst = 11\n":             "80896 2",
		sliced + "slice_memory = \"100GiB\"":        "0 100",
		sliced + "compute_burst = 10\nreplicas = 2": "80896 1",
	} {
		p := testPreparer(t, testConfig(t, config), &fleet.Platform{}, nil)
		u := plan.Units(p.Config, testRegistry(), testMachine(1), quiet())[0]
		if s := p.mpsSpec(u); fmt.Sprint(s.MemoryMiB, s.Percent) != want || s.UUID != u.UUID {
			t.Errorf("%q: %d MiB, %d %%, want %s", config, s.MemoryMiB, s.Percent, want)
		}
	}
}

// A device is empty only if that is known.
func TestEmptyIsWhatIsKnownToBe(t *testing.T) {
	for name, tc := range map[string]struct {
		held   map[int]bool
		all    bool
		on     []hardware.Process
		silent bool
		want   bool
	}{
		"empty":     {want: true},
		"a slice":   {held: map[int]bool{1: true}},
		"all":       {all: true},
		"a client":  {on: []hardware.Process{{PID: 1}, {PID: 2, MPS: true}}},
		"no client": {on: []hardware.Process{{PID: 1}}, want: true},
		"silent":    {silent: true},
	} {
		h := &releasable{on: map[string][]hardware.Process{"GPU-1": tc.on}, silent: tc.silent}
		p := testPreparer(t, testConfig(t, sliced), &fleet.Platform{Observer: h}, nil)
		if got := p.empty(&plan.Unit{UUID: "GPU-1", Held: tc.held, HeldAll: tc.all}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
