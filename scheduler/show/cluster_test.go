// SPDX-License-Identifier: MPL-2.0

package show_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// waiting is what people see of the only group that waits.
func waiting(t *testing.T, s *servicetest.Service) view.Pending {
	t.Helper()
	list := s.Cluster(t).Pending
	if len(list) != 1 {
		t.Fatalf("%d groups wait: %+v", len(list), list)
	}
	return list[0]
}

// changeJob changes how an ask's job is registered.
func changeJob(s *servicetest.Service, a admit.Ask, change func(*nomad.Job)) {
	j := s.Job(servicetest.KeyOf(a))
	j.Groups = slices.Clone(j.Groups)
	for i := range j.Groups {
		j.Groups[i].Tasks = slices.Clone(j.Groups[i].Tasks)
	}
	change(&j)
	s.Index++
	j.Index = s.Index
	s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
}

// changeRecord changes what is recorded of an ask's group.
func changeRecord(s *servicetest.Service, a admit.Ask, change func(*record.Group)) {
	s.State.Do(func(tx *state.Tx) {
		known := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := known.Groups[a.Group]
		change(&g)
		known.Groups[a.Group] = g
		tx.Keep(known)
	})
}

// Machines stand in the order of their names, those of one name in that of their IDs.
func TestNodesAreInOrder(t *testing.T) {
	var machines []*nomad.Node
	for id, name := range map[string]string{"1": "z", "2": "y", "3": "z", "4": "a"} {
		m := servicetest.Machine(id, 1)
		m.View.Name = name
		machines = append(machines, m)
	}
	var got []string
	for _, n := range servicetest.New(t, "", machines...).Cluster(t).Nodes {
		got = append(got, n.Name+" "+n.ID)
	}
	if want := []string{"a id-4", "y id-2", "z id-1", "z id-3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What tasks hold of a machine adds up, by GPU, and each GPU names them; what runs without
// GPUs counts with its CPU and memory alone.
func TestWhatRunsIsShownWhereItRuns(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2), servicetest.Machine("b", 1))
	s.Tenant(t, "y", 30, "a", 0, 0, 4)
	x := s.Tenant(t, "x", 40, "a", 0, 4, 12)
	changeJob(s, x, func(j *nomad.Job) { j.Groups[0].Tasks[0].LimitMilli = 900 })
	s.Tenant(t, "on-b", 50, "b", 0, 0, 1)
	s.Run(servicetest.Ask("plain", "1G", 1), "alloc-plain", "a", 0, 0, 0)
	around := servicetest.Ask("around", "1G", 1)
	around.Namespace = "other"
	s.Show(around, false)
	s.Run(around, "alloc-around", "a", 1, 15, 1)
	c := s.Cluster(t)
	a := c.Nodes[0]
	if a.CPUUsedMHz != 400 || a.MemoryUsedMiB != 400 || c.Nodes[1].CPUUsedMHz != 100 || c.Nodes[1].MemoryUsedMiB != 100 {
		t.Errorf("used are %d MHz, %d MiB; %d, %d", a.CPUUsedMHz, a.MemoryUsedMiB, c.Nodes[1].CPUUsedMHz, c.Nodes[1].MemoryUsedMiB)
	}
	shared, other := a.GPUs[0], a.GPUs[1]
	if shared.HeldMilli != 1000 || shared.HeldMemoryMiB != 16<<10 || shared.HeldInstances != 16 || len(shared.Holders) != 2 {
		t.Fatalf("of the first GPU are held %+v", shared)
	}
	first := view.Holder{
		AllocID: "alloc-x", Namespace: "default", JobID: "x", Group: "g", Task: "t", Queue: "q", Priority: 40, Status: "running",
		Instances: 12, MemoryMiB: 12 << 10, GuaranteeMilli: 750, LimitMilli: 900, Since: s.Clock.At,
	}
	if h := shared.Holders[0]; h != first {
		t.Errorf("the first holder is %+v, want %+v", h, first)
	}
	if h := shared.Holders[1]; h.AllocID != "alloc-y" || h.Instances != 4 || h.Priority != 30 {
		t.Errorf("the second holder is %+v", h)
	}
	for i, in := range shared.Instances {
		if want := map[bool]string{true: "alloc-y", false: "alloc-x"}[i < 4]; in.AllocID != want || in.Task != "t" {
			t.Errorf("slice %d is held by %+v, want %s", i, in, want)
		}
	}
	if h := other.Holders; len(h) != 1 || h[0].AllocID != "alloc-around" || !h[0].Direct || h[0].Queue != "" || other.HeldMilli != 62 || other.HeldInstances != 1 {
		t.Errorf("of the other GPU are held %+v", other)
	}
	if other.Instances[14].AllocID != "" || other.Instances[15].AllocID != "alloc-around" {
		t.Errorf("its last slices are held by %+v", other.Instances[14:])
	}
	for _, id := range []string{"alloc-x", "alloc-y", "alloc-around"} {
		s.End(id)
	}
	again := s.Cluster(t).Nodes[0].GPUs[0]
	if len(again.Holders) != 0 || again.HeldMilli != 0 || again.Instances[0].AllocID != "" || again.Holders == nil {
		t.Errorf("what is over is still shown: %+v", again)
	}
	if len(shared.Holders) != 2 || shared.Instances[0].AllocID != "alloc-y" {
		t.Error("a view that was handed out has changed")
	}
}

// Tasks cannot hold more compute of a GPU than it has, whatever they were given.
func TestNoMoreComputeIsHeldThanThereIs(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	for i, id := range []string{"x", "y"} {
		a := s.Tenant(t, id, 50, "a", 0, 4*i, 4)
		changeJob(s, a, func(j *nomad.Job) { j.Groups[0].Tasks[0].GuaranteeMilli = 700 })
	}
	g := s.Cluster(t).Nodes[0].GPUs[0]
	if g.HeldMilli != 1000 || len(g.Holders) != 2 || g.Holders[0].GuaranteeMilli != 700 || g.HeldMemoryMiB != 8<<10 {
		t.Errorf("got %+v", g)
	}
}

// What a task uses is shown where it is known; it is idle from when on its queue calls it so,
// and then its queue's action is named.
func TestUseIsShownWhereItIsKnown(t *testing.T) {
	s := servicetest.New(t, "monitor_update_interval = \"1m\"\nqueue \"q\" {\n namespaces = [\"default\"]\n idle_after = \"3m\"\n idle_action = \"evict\"\n}\n", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
	use := func() *view.Use { return s.Cluster(t).Nodes[0].GPUs[0].Holders[0].Use }
	if u := use(); u != nil {
		t.Errorf("before anything is measured: %+v", u)
	}
	began := s.Clock.At
	for minute := range 5 {
		m := nomad.NewMeasurements()
		told := nomad.TaskUse{At: s.Clock.At, MemoryMiB: 7, Seat: gpu.SeatResident, SeatSince: began, SeatFirst: began.Add(time.Hour), SeatWhy: "it has the seat"}
		if minute == 4 {
			told.Milli = 3
		}
		m.Tasks[servicetest.Instance("a", 0, 0)] = told
		s.State.Measured("id-a", m)
		want := view.Use{At: told.At, MemoryMiB: 7, Seat: "resident", SeatSince: began, SeatFirst: began.Add(time.Hour), SeatWhy: "it has the seat", UnusedSince: began}
		switch minute {
		case 3:
			want.Idle, want.Action = true, "evict"
		case 4:
			want.Milli, want.UnusedSince = 3, time.Time{}
		}
		if u := use(); u == nil || *u != want {
			t.Errorf("minute %d: %+v, want %+v", minute, u, want)
		}
		s.Pass(time.Minute)
	}
}

// queues says what each queue holds, borrows and has waiting.
const queues = `
queue "org" {
  gpus   = 3
  borrow = false
}
queue "x" {
  parent        = "org"
  gpus          = 1
  max_gpus      = 2
  gpu_memory_gb = 16
  max_gpu_memory_gb = 40
  namespaces    = ["default"]
}
queue "y" {
  gpus       = 1
  namespaces = ["other"]
}
`

// A queue says what it is guaranteed, what its work holds, how much of that is borrowed or came
// around the service, and how many groups wait in it.
func TestQueuesSayWhatTheyHold(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 3))
	s.Tenant(t, "one", 50, "a", 0, 0, 16)
	around := servicetest.Ask("around", "8G", 1)
	s.Show(around, false)
	s.Run(around, "alloc-around", "a", 1, 0, 8)
	s.Pass(time.Minute)
	for _, id := range []string{"w1", "w2"} {
		s.Waits(t, id, "1", 50)
	}
	list := s.Cluster(t).Queues
	if len(list) != 3 || list[0].Name != "org" || list[1].Name != "x" || list[2].Name != "y" {
		t.Fatalf("the queues are %+v", list)
	}
	org, x, y := list[0], list[1], list[2]
	if org.QuotaMilli != 3000 || org.MaxMilli != 3000 || org.UsedMilli != 1500 || org.BorrowedMilli != 0 || org.Pending != 0 || org.Parent != "" {
		t.Errorf("org: %+v", org)
	}
	if x.Parent != "org" || !slices.Equal(x.Namespaces, []string{"default"}) || x.QuotaMilli != 1000 || x.QuotaMemoryMiB != 16<<10 || x.MaxMilli != 2000 || x.MaxMemoryMiB != 40<<10 ||
		x.UsedMilli != 1500 || x.BorrowedMilli != 500 || x.UsedMemoryMiB != 24<<10 || x.BorrowedMemoryMiB != 8<<10 || x.DirectMilli != 500 || x.Pending != 2 || x.Above != "" {
		t.Errorf("x: %+v", x)
	}
	if y.UsedMilli != 0 || y.DirectMilli != 0 || y.Pending != 0 || y.Above != "" || y.Namespaces[0] != "other" {
		t.Errorf("y: %+v", y)
	}
}

// A queue says by which rules its work is placed and evicted, which the simulator goes by.
func TestQueuesSayTheirRules(t *testing.T) {
	s := servicetest.New(t, `
preemption {
  min_run_time = "2m"
}
queue "x" {
  gpus             = 1
  namespaces       = ["default"]
  allow_namespaces = ["other"]
  models           = ["A100"]
  max_priority     = 70
  min_run_time     = "10m"
}
queue "y" {
  gpus       = 1
  namespaces = ["third"]
}
`, servicetest.Machine("a", 2))
	c := s.Cluster(t)
	x, y := c.Queues[0], c.Queues[1]
	if x.MinRunS != 600 || x.MaxPriority != 70 || !slices.Equal(x.AllowNamespaces, []string{"other"}) || !slices.Equal(x.Models, []string{"A100"}) {
		t.Errorf("x: %+v", x)
	}
	if c.MinRunS != 120 || y.MinRunS != 120 || y.MaxPriority != 100 || y.AllowNamespaces != nil || y.Models != nil {
		t.Errorf("min_run_s %d, y: %+v", c.MinRunS, y)
	}
}

// A queue that is above its limit says so, and what of that the service cannot bring back:
// what was dispatched, and what came around it where such jobs are left alone.
func TestAQueueAboveItsLimitSaysWhyItStays(t *testing.T) {
	for name, row := range map[string]struct {
		config               string
		dispatched, around   int // slices
		saysDispatch, saysBy string
	}{
		"within its limit":        {around: 16},
		"all admitted":            {},
		"some dispatched":         {dispatched: 8, saysDispatch: "0.5 GPU"},
		"some around":             {around: 8, saysBy: "0.5 GPU"},
		"some around, to be held": {config: "preemption {\n hold_direct_jobs = true\n}\n", around: 8},
		"both":                    {dispatched: 8, around: 4, saysDispatch: "0.5 GPU", saysBy: "0.25 GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, row.config+servicetest.OneGPU, servicetest.Machine("a", 4))
			above := name != "within its limit"
			if above {
				for i, id := range []string{"one", "two"} {
					a := servicetest.Ask(id, "1", 1)
					s.Submit(t, a)
					s.Register(a)
					s.Run(a, "alloc-"+id, "a", i, 0, 16)
				}
			}
			if row.dispatched > 0 {
				a := servicetest.Ask("child", "8G", 1)
				a.Priority = 10
				s.Submit(t, a)
				s.Register(a)
				changeJob(s, a, func(j *nomad.Job) { j.Dispatched = true })
				s.Run(a, "alloc-child", "a", 2, 0, row.dispatched)
			}
			if row.around > 0 {
				a := servicetest.Ask("around", "8G", 1)
				s.Show(a, false)
				s.Run(a, "alloc-around", "a", 3, 0, row.around)
			}
			s.Pass(time.Minute)
			text := s.Cluster(t).Queues[0].Above
			if (text != "") != above {
				t.Errorf("it says %q", text)
			}
			for _, part := range []struct{ amount, of string }{{row.saysDispatch, "dispatched jobs"}, {row.saysBy, "jobs that came around the service"}} {
				if strings.Contains(text, part.of) != (part.amount != "") || !strings.Contains(text, part.amount) {
					t.Errorf("it says %q, and of %s are %q", text, part.of, part.amount)
				}
			}
		})
	}
}

// A reservation is shown with the room that it keeps, also where its machine is gone.
func TestReservationsAreShown(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2))
	if list := s.Cluster(t).Holds; list == nil || len(list) != 0 {
		t.Errorf("nothing is reserved: %v", list)
	}
	for _, amount := range []string{"2", "4G"} {
		r, _ := gpu.ParseRequest(amount)
		h, err := s.Reserve(t.Context(), reserve.Want{Namespace: "default", Owner: "me", Request: r, For: time.Hour}, amount == "4G")
		if amount == "4G" {
			if err == nil {
				t.Errorf("reserved room is given away: %+v", h)
			}
			continue
		}
		want := view.Hold{ID: h.ID, Namespace: "default", Queue: "q", Owner: "me", NodeID: "id-a", NodeName: "a", Milli: 2000, MemoryMiB: 32 << 10, ExpiresAt: s.Clock.At.Add(time.Hour)}
		gpus := h.GPUs
		h.GPUs = nil
		if err != nil || fmt.Sprint(h) != fmt.Sprint(want) || !slices.Equal(gpus, []string{"GPU-a-0", "GPU-a-1"}) {
			t.Errorf("got %+v on %v, %v; want %+v", h, gpus, err, want)
		}
	}
	if list := s.Cluster(t).Holds; len(list) != 1 || list[0].NodeName != "a" || len(list[0].GPUs) != 2 {
		t.Errorf("got %+v", list)
	}
	s.State.Apply([]nomad.Change{{NodeGone: "id-a"}}, s.Index+1)
	if list := s.Cluster(t).Holds; len(list) != 1 || list[0].NodeID != "id-a" || list[0].NodeName != "" || list[0].GPUs == nil || list[0].Milli != 0 {
		t.Errorf("its machine is gone: %+v", list)
	}
}
