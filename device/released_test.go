package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// releaseBench is a preparer whose hardware and daemons do as a test says.
type releaseBench struct {
	*preparer
	registry *registry.Registry
	hardware *releasable
}

// releasable is a GPU with programs, which can be let go of and reset, or not.
type releasable struct {
	fleet.Observer
	on     map[string][]hardware.Process // by the UUID that is asked
	silent bool
	// released and reset count; failure is that of a reset.
	released, reset int
	failure         error
}

func (h *releasable) Processes(_, uuid string) ([]hardware.Process, error) {
	if h.silent {
		return nil, errors.New("no answer")
	}
	return h.on[uuid], nil
}

func (h *releasable) Release(_ string, f func() error) error { h.released++; return f() }
func (h *releasable) Reset(string) error                     { h.reset++; return h.failure }

func newReleaseBench(t *testing.T) *releaseBench {
	h := &releasable{on: map[string][]hardware.Process{}}
	p := testPreparer(t, testConfig(t, sliced), &fleet.Platform{Observer: h, Resetter: h}, fixedDaemons{server: 7})
	return &releaseBench{p, testRegistry(), h}
}

// pass plans and releases, until nothing more comes of it, and returns the first unit.
func (b *releaseBench) pass(inputs plan.Inputs) *plan.Unit {
	var u *plan.Unit
	for range 3 {
		inputs.Cordons, _ = b.Cordons.All()
		units := plan.Units(b.Config, b.registry, testMachine(2), inputs)
		u = units[0]
		b.release(units)
		synctest.Wait()
	}
	return u
}

// A GPU is let go of once no task and no program but its daemon's is on it, and the
// daemon has ended; until then it takes no new work, and its neighbor is not concerned.
func TestReleaseWaitsForAnEmptyGPU(t *testing.T) {
	uuid := testUUID(0)
	slice := quiet()
	slice.Holders[uuid] = occupancy.Holder{Slices: map[int]bool{3: true}}
	all := quiet()
	all.Holders[uuid] = occupancy.Holder{All: true}
	for name, tc := range map[string]struct {
		inputs   plan.Inputs
		on       []hardware.Process
		silent   bool
		released bool // has no daemon any more
		done     bool
	}{
		"empty":             {quiet(), nil, false, true, true},
		"a task's slice":    {slice, nil, false, false, false},
		"a task":            {all, nil, false, false, false},
		"a program":         {quiet(), []hardware.Process{{PID: 9}}, false, false, false},
		"its daemon's":      {quiet(), []hardware.Process{{PID: 7}}, false, true, false},
		"that and another":  {quiet(), []hardware.Process{{PID: 7}, {PID: 9}}, false, false, false},
		"no one knows what": {quiet(), nil, true, false, false},
	} {
		for _, reset := range []string{"", registry.ReleaseReset} {
			t.Run(name+" "+reset, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newReleaseBench(t)
					b.hardware.on[uuid], b.hardware.silent = tc.on, tc.silent
					if err := b.Releases.Add(uuid, reset); err != nil {
						t.Fatal(err)
					}
					units := plan.Units(b.Config, b.registry, testMachine(2), tc.inputs)
					b.release(units)
					synctest.Wait()
					if u := units[0]; u.Cordon == "" || u.Released != tc.released {
						t.Errorf("cordoned %q, released %v", u.Cordon, u.Released)
					}
					if u := units[1]; u.Cordon != "" || u.Released {
						t.Errorf("its neighbor is cordoned %q, released %v", u.Cordon, u.Released)
					}
					b.pass(tc.inputs)
					if done := !b.Releases.Has(uuid); done != tc.done || (b.hardware.released > 0) != tc.done || (b.hardware.reset > 0) != (tc.done && reset != "") {
						t.Errorf("done %v, let go of %d times, reset %d times", done, b.hardware.released, b.hardware.reset)
					}
					if b.Cordons.Has(uuid) {
						t.Error("it stays cordoned")
					}
				})
			})
		}
	}
}

// A reset that fails is said by a cordon that stays, and is not tried again unasked.
func TestAResetThatFailsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, uuid := newReleaseBench(t), testUUID(0)
		b.hardware.failure = errors.New("GPU is an NVLink neighbor of GPU-2")
		if err := b.Releases.Add(uuid, registry.ReleaseReset); err != nil {
			t.Fatal(err)
		}
		u := b.pass(quiet())
		if !strings.Contains(u.Cordon, "its release failed: GPU is an NVLink neighbor of GPU-2") || b.Releases.Has(uuid) || b.hardware.reset != 1 {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
		time.Sleep(2 * retryInterval)
		if u = b.pass(quiet()); b.hardware.reset != 1 || u.Cordon == "" {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
		// Asked for anew, it is done at once.
		b.hardware.failure = nil
		if err := errors.Join(b.Cordons.Remove(uuid), b.Releases.Add(uuid, registry.ReleaseReset)); err != nil {
			t.Fatal(err)
		}
		if u = b.pass(quiet()); b.hardware.reset != 2 || u.Cordon != "" {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
	})
}

// settableModes are the compute modes of a GPU, with what they were set to.
type settableModes struct {
	now hardware.ComputeMode
	set []hardware.ComputeMode
}

func (m *settableModes) ComputeMode(string, string) (hardware.ComputeMode, error) { return m.now, nil }

func (m *settableModes) SetComputeMode(_, _ string, mode hardware.ComputeMode) error {
	m.now, m.set = mode, append(m.set, mode)
	return nil
}

// A GPU that is released is as it was found while it is reset, and exclusive after.
func TestReleasePutsTheComputeModeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uuid := testUUID(0)
		h := &releasable{on: map[string][]hardware.Process{uuid: {{PID: 9}}}}
		modes := &settableModes{now: hardware.ComputeDefault}
		p := testPreparer(t, testConfig(t, sliced+"mps {\n exclusive = true\n}"), &fleet.Platform{Observer: h, Resetter: h, Moder: modes}, statusDaemons{})
		known := testRegistry()
		pass := func() {
			p.Prepare(plan.Units(p.Config, known, testMachine(1), quiet()), testMachine(1), quiet())
			synctest.Wait()
		}
		expect := func(what string, want ...hardware.ComputeMode) {
			t.Helper()
			if !slices.Equal(modes.set, want) {
				t.Errorf("%s: the mode was set to %v, want %v", what, modes.set, want)
			}
		}
		pass()
		expect("at first", hardware.ComputeExclusive)
		if err := p.Releases.Add(uuid, ""); err != nil {
			t.Fatal(err)
		}
		pass()
		expect("while a program is on it", hardware.ComputeExclusive)
		h.on[uuid] = nil
		pass()
		expect("while it is released", hardware.ComputeExclusive, hardware.ComputeDefault)
		pass() // hears that it is done
		pass()
		expect("after", hardware.ComputeExclusive, hardware.ComputeDefault, hardware.ComputeExclusive)
		if p.Releases.Has(uuid) || h.released != 1 {
			t.Errorf("it was let go of %d times", h.released)
		}
	})
}

// statusDaemons give every device the same status.
type statusDaemons struct {
	daemons
	status mps.Status
}

func (d statusDaemons) Want([]mps.Spec)          {}
func (d statusDaemons) Status(string) mps.Status { return d.status }
func (d statusDaemons) Server(int) bool          { return false }

// What a daemon says of itself decides about its device: a fault, a cordon for new
// work, or neither.
func TestStatusOfADaemonIsThatOfItsDevice(t *testing.T) {
	ready := mps.Status{Ready: true, Settled: true, Generation: 2, PipeDir: "/p", ControlDir: "/c", LogDir: "/l", ShmDir: "/s", Server: mps.ServerActive, MultiUser: true}
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
			if m := u.MPS; m.Users != tc.users || m.MaxClients != 48 || fmt.Sprint(m.PipeDir, m.ControlDir, m.LogDir, m.ShmDir, m.Generation) != fmt.Sprint("/p/c/l/s", tc.status.Generation) || u.Unsettled != tc.unsettled {
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
