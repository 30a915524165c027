// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A cluster without nodes refuses with that as the reason, any other with what is wrong with
// its nodes.
func TestACluterWithoutNodesSaysSo(t *testing.T) {
	const none = "no node is known"
	for _, machines := range [][]*nomad.Node{nil, {servicetest.Machine("a", 1)}} {
		s := servicetest.New(t, "", machines...)
		_, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "20G", 1)}, true)
		var refusal *admit.Refusal
		if !errors.As(err, &refusal) || slices.Contains(refusal.Details, none) != (len(machines) == 0) || len(refusal.Details) == 0 {
			t.Errorf("%d machines: %v", len(machines), err)
		}
	}
}

// New allocs of a group that runs go where its device blocks, which stay, can be served: not
// where only a new submission would fit.
func TestNewAllocsGoWhereTheBlocksFit(t *testing.T) {
	for name, row := range map[string]struct {
		machines []*nomad.Node // beside a, which is full
		want     string        // the node; empty: it waits
	}{
		"on slices":           {[]*nomad.Node{servicetest.Machine("b", 1)}, "id-b"},
		"not on a whole GPU":  {[]*nomad.Node{wholeMachine("b")}, ""},
		"on slices of either": {[]*nomad.Node{wholeMachine("b"), servicetest.Machine("c", 1)}, "id-c"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			a := servicetest.Ask("job", "1", 1)
			first := s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 16)
			for _, m := range row.machines {
				s.State.Apply([]nomad.Change{{Node: m}}, s.Index+1)
			}
			a.Count = 2
			d := s.Submit(t, a)
			if got := strings.Join(d.Preferred, " "); got != row.want || d.Tasks[0].Devices[0].Name != first.Tasks[0].Devices[0].Name || len(s.AllAssumed()) != min(1, len(row.want)) {
				t.Errorf("goes to %q with %+v; %v", got, d.Tasks, s.AllAssumed())
			}
		})
	}
}

// Where no node can serve the blocks of what runs any more, new allocs of it wait.
func TestBlocksThatNoNodeServesWait(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	a := servicetest.Ask("job", "1", 1)
	s.Submit(t, a)
	s.Register(a)
	s.Run(a, "alloc", "a", 0, 0, 16)
	whole := wholeMachine("a") // the operator has changed the mode of its GPUs
	s.State.Apply([]nomad.Change{{Node: whole}, {Node: wholeMachine("b")}}, s.Index+1)
	a.Count = 2
	if d := s.Submit(t, a); len(d.Preferred) != 0 || len(s.AllAssumed()) != 0 || d.Outcome != view.Waits {
		t.Errorf("got %+v; %v", d, s.AllAssumed())
	}
}

// Of the models that a job asks for, those count that its queue may use, in the job's order and
// whatever their case.
func TestModelsThatBothWant(t *testing.T) {
	for name, row := range map[string]struct {
		queue   string // models
		request string
		want    string // the model of what it gets
		says    string
	}{
		"any of the queue's":    {`["T4"]`, "1", "T4", ""},
		"one of them":           {`["H100", "T4"]`, "1(T4)", "T4", ""},
		"in another case":       {`["t4"]`, "1(T4)", "T4", ""},
		"one of two is allowed": {`["T4"]`, "1(H100|T4)", "T4", ""},
		"two are":               {`["T4", "V100"]`, "1(V100|T4)", "V100", ""},
		"none is":               {`["T4"]`, "1(H100|V100)", "", "queue q may use GPUs of model T4, not H100, V100"},
	} {
		t.Run(name, func(t *testing.T) {
			v := servicetest.Machine("v", 1)
			v.Plan.GPUs[0].Type, v.Plan.GPUs[0].Model = "V100", "Tesla V100"
			s := servicetest.New(t, "queue \"q\" {\n gpus = 8\n models = "+row.queue+"\n namespaces = [\"default\"]\n}\n", servicetest.Machine("t", 1), v)
			d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", row.request, 1)}, true)
			switch {
			case row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)):
				t.Errorf("got %+v, %v", d, err)
			case row.says == "" && (err != nil || d[0].Tasks[0].Holds.Type != row.want):
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// What a queue can still pay for of a group that runs: what it holds, what is more than that, and
// what is owed to others.
func TestWhatAGroupCanGrowTo(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	a := servicetest.Ask("job", "4G", 2)
	s.Submit(t, a)
	s.Register(a)
	can := func(count int) (can bool) {
		g := recorded(s, a)
		s.State.Do(func(tx *state.Tx) { can = decide.CanGrow(tx, servicetest.KeyOf(a), &g, count) })
		return can
	}
	if !can(100) {
		t.Error("of what does not run at all nothing is said")
	}
	s.Run(a, "alloc-1", "a", 0, 0, 4)
	s.Run(a, "alloc-2", "a", 0, 4, 4)
	for count, want := range map[int]bool{1: true, 2: true, 3: true, 4: true, 5: false} {
		if can(count) != want {
			t.Errorf("%d allocs of four slices: %v, want %v", count, !want, want)
		}
	}
	s.Tenant(t, "other", 50, "a", 1, 0, 10) // above the queue's bound: it came so
	for count, want := range map[int]bool{1: false, 2: false, 3: false} {
		if can(count) != want {
			t.Errorf("above the bound, %d allocs: %v, want %v", count, !want, want)
		}
	}
	other := servicetest.Ask("free", "4G", 1)
	other.Namespace = "other"
	s.Submit(t, other)
	s.Register(other)
	s.Run(other, "alloc-free", "a", 1, 10, 4)
	g := recorded(s, other)
	s.State.Do(func(tx *state.Tx) {
		if !decide.CanGrow(tx, servicetest.KeyOf(other), &g, 50) {
			t.Error("no queue pays, and yet it is bound")
		}
	})
}

// Whatever of its blocks a job was registered with otherwise than recorded, that it runs with is
// recorded; what is as recorded is not written again.
func TestEachDifferenceOfBlocksIsRecorded(t *testing.T) {
	for name, change := range map[string]func(*admit.TaskDecision){
		"nothing":        func(*admit.TaskDecision) {},
		"its name":       func(d *admit.TaskDecision) { d.Devices[0].Name = "nvidia/gpu" },
		"its count":      func(d *admit.TaskDecision) { d.Devices[0].Count++ },
		"its preference": func(d *admit.TaskDecision) { d.Devices[0].Prefer = "T4/1" },
		"a constraint":   func(d *admit.TaskDecision) { d.Devices[0].Constraints[0].RTarget = "2048 MiB" },
		"no constraint":  func(d *admit.TaskDecision) { d.Devices[0].Constraints = nil },
		"another block":  func(d *admit.TaskDecision) { d.Devices = append(d.Devices, admit.Device{Name: "nvidia/gpu", Count: 1}) },
		"no block":       func(d *admit.TaskDecision) { d.Devices = nil },
		"its task":       func(d *admit.TaskDecision) { d.Task = "u" },
		"its share":      func(d *admit.TaskDecision) { d.Share.MemoryMiB = 77 },
		"its seat":       func(d *admit.TaskDecision) { d.SeatPriority = 7 },
		"a bound":        func(d *admit.TaskDecision) { d.Bound = new(admit.Constraint) },
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			a := servicetest.Ask("job", "8G", 1)
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 8)
			was := servicetest.WasOf(recorded(s, a).Decision)
			was.Tasks = slices.Clone(was.Tasks)
			was.Tasks[0].Devices = slices.Clone(was.Tasks[0].Devices)
			was.Tasks[0].Devices[0].Constraints = slices.Clone(was.Tasks[0].Devices[0].Constraints)
			change(&was.Tasks[0])
			asks := []admit.Ask{a}
			asks[0].Was = was
			before := s.Record(servicetest.KeyOf(a))
			if _, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Align: true}); err != nil {
				t.Fatal(err)
			}
			after := s.Record(servicetest.KeyOf(a))
			if (after != before) != (name != "nothing") || fmt.Sprint(after.Groups["g"].Decision.Tasks) != fmt.Sprint(was.Decision("g").Tasks) {
				t.Errorf("recorded is %+v, registered %+v", after.Groups["g"].Decision.Tasks, was.Tasks)
			}
		})
	}
}

// A group that runs, and whose record and registration differ in the hold, goes on without one
// where it is registered so, or where its queue can pay for all of it.
func TestAHoldOfWhatRunsEnds(t *testing.T) {
	for name, row := range map[string]struct {
		registered string
		beside     int // slices of another job
		held       bool
	}{
		"it is registered without":     {"", 8, false},
		"its queue can pay for it":     {"quota: as it was", 0, false},
		"what is missing must wait on": {"quota: as it was", 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("job", "4G", 3)
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 4)
			if row.beside > 0 {
				around := servicetest.Ask("around", "1G", 1)
				s.Show(around, false)
				s.Run(around, "alloc-around", "a", 1, 0, row.beside)
			}
			s.LetTimePass()
			known := s.Record(servicetest.KeyOf(a)).Clone()
			held := known.Groups["g"]
			held.Decision.Hold = &admit.Hold{Kind: view.WaitsForQuota, Sentence: "as it was"}
			known.Groups["g"] = held
			if err := known.Write(t.Context(), s.Store); err != nil {
				t.Fatal(err)
			}
			s.State.Do(func(tx *state.Tx) {
				tx.Forget(known.Key())
				tx.Keep(known)
			})
			was := servicetest.WasOf(recorded(s, a).Decision)
			was.Hold = row.registered
			asks := []admit.Ask{a}
			asks[0].Was = was
			d, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Align: true})
			if err != nil {
				t.Fatal(err)
			}
			if d != nil {
				s.Settle(t.Context(), asks, d, true)
			}
			if g := recorded(s, a); (g.Decision.Hold != nil) != row.held {
				t.Errorf("recorded is %+v", g.Decision.Hold)
			}
		})
	}
}

// What comes near to all of a GPU's memory is not said to a task with a seat: the driver keeps a
// part for itself.
func TestASeatIsToldMemoryThatItCanHave(t *testing.T) {
	for asked, want := range map[string]int64{"1": 0, "8G": 8 << 10, "14745M": 14745, "14746M": 0, "16G": 0} {
		s := servicetest.New(t, "", servicetest.SeatMachine("a", 0, 1, 90))
		a := servicetest.Ask("job", asked, 1)
		a.Sharing = gpu.SharingSuspend
		if d := s.Submit(t, a); d.Tasks[0].Share.MemoryMiB != want {
			t.Errorf("%s: told of %d MiB, want %d", asked, d.Tasks[0].Share.MemoryMiB, want)
		}
	}
}

// The author of device blocks gives a seat its priority, in the submission or as it is registered;
// what is not known has the normal one.
func TestThePriorityThatIsWrittenIsThatOfTheSeat(t *testing.T) {
	for name, row := range map[string]struct {
		asked      int
		registered func(*nomad.Job)
		want       int
	}{
		"in the submission": {30, nil, 30},
		"as registered":     {0, func(j *nomad.Job) { j.Groups[0].Tasks[0].SeatPriority = 20 }, 20},
		"in both":           {30, func(j *nomad.Job) { j.Groups[0].Tasks[0].SeatPriority = 20 }, 30},
		"of another task":   {0, func(j *nomad.Job) { j.Groups[0].Tasks[0].Name, j.Groups[0].Tasks[0].SeatPriority = "u", 20 }, 0},
		"of another group":  {0, func(j *nomad.Job) { j.Groups[0].Name, j.Groups[0].Tasks[0].SeatPriority = "h", 20 }, 0},
		"nowhere":           {0, nil, 0},
	} {
		s := servicetest.New(t, "", servicetest.SeatMachine("a", 0, 1, 90))
		a := servicetest.Ask("job", "1", 1)
		a.Tasks[0] = admit.TaskAsk{Task: "t", Driver: "containerd", SeatPriority: row.asked, Devices: []admit.DeviceAsk{{Name: "nvidia/shared", Count: 1}}}
		if row.registered != nil {
			s.Show(a, false)
			registered(s, a, row.registered)
			s.Pass(state.Unseen)
		}
		s.Submit(t, a)
		if list := s.AllAssumed(); len(list) != 1 || list[0].Usage.SeatPriority != row.want {
			t.Errorf("%s: assumed %+v, want priority %d", name, list, row.want)
		}
	}
}

// Compute beyond the memory's part is covered by slices where Nomad chooses the GPU; what runs
// already without that is evicted for as it runs.
func TestRoomIsMadeForABlockAsItIs(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	a := servicetest.Ask("job", "4G,0.5", 1)
	a.Priority = 80
	d := s.Submit(t, a)
	if d.Tasks[0].Devices[0].Count != 4 {
		t.Fatalf("of one alloc the GPU is the service's choice: %+v", d.Tasks)
	}
	s.Register(a)
	s.Run(a, "alloc", "a", 0, 0, 4)
	s.Tenant(t, "beside", 90, "a", 0, 4, 8)
	s.Tenant(t, "large", 20, "b", 0, 0, 9)
	s.Tenant(t, "small", 30, "b", 0, 9, 5)
	s.LetTimePass()
	g := recorded(s, a)
	g.Ask.Count = 2
	var e *decide.Eviction
	s.State.Do(func(tx *state.Tx) { e = decide.Evict(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx)) })
	if e == nil {
		t.Fatal("nothing is evicted")
	}
	for _, p := range e.Promises {
		for _, take := range p.Usage.Takes {
			if take.Slices != 4 {
				t.Errorf("room is made for %+v, and its block is of 4", take)
			}
		}
	}
}

// What may not use its queue any more is not decided about again: it goes on as it was, and why is
// told.
func TestWhatMayNotUseItsQueueIsNotRetried(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 1\n namespaces = [\"other\"]\n}\n", servicetest.Machine("a", 2))
	a := servicetest.Ask("job", "8G", 1)
	d := s.Submit(t, a)
	s.Register(a)
	before := s.Record(servicetest.KeyOf(a))
	for _, queue := range []string{"q", "gone"} {
		now := servicetest.Reread(a, d)
		now.Queue = queue
		got, err := s.Revise(t.Context(), []admit.Ask{now}, decide.Revision{Group: "g", Retry: true})
		var refusal *admit.Refusal
		if got != nil || !errors.As(err, &refusal) || refusal.Status != 403 || !strings.Contains(err.Error(), queue) || s.Record(servicetest.KeyOf(a)) != before {
			t.Errorf("%s: %+v, %v", queue, got, err)
		}
	}
}

// Tasks of a group that share a GPU hold it together: what is promised to them is their sum.
func TestTasksThatShareAGPUAddUp(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("two", "3G,0.4", 1)
	a.Tasks = append(a.Tasks, a.Tasks[0])
	a.Tasks[1].Task = "u"
	s.Submit(t, a)
	promised := s.AllAssumed()
	if len(promised) != 1 || len(promised[0].Usage.Takes) != 1 {
		t.Fatalf("promised is %+v", promised)
	}
	if take := promised[0].Usage.Takes[0]; take.Milli != 800 || take.Slices != 6 {
		t.Errorf("they hold %d milli and %d slices", take.Milli, take.Slices)
	}
	for _, row := range []struct {
		request string
		fits    bool
	}{{"1G,0.3", false}, {"1G,0.2", true}} {
		if d := s.Submit(t, servicetest.Ask("beside-"+row.request, row.request, 1)); (len(d.Preferred) == 1) != row.fits {
			t.Errorf("%s beside them: %+v", row.request, d)
		}
	}
}

func TestTasksThatShareSeatsAddUp(t *testing.T) {
	s := servicetest.New(t, "", servicetest.SeatMachine("a", 0, 1, 1))
	a := blocks("two", "nvidia/shared", 1)
	a.Tasks = append(a.Tasks, a.Tasks[0])
	a.Tasks[1].Task = "u"
	s.Submit(t, a)
	promised := s.AllAssumed()
	if len(promised) != 1 || len(promised[0].Usage.Takes) != 1 || promised[0].Usage.Takes[0].Replicas != 2 {
		t.Errorf("promised is %+v", promised)
	}
}
