// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// in is a machine in a datacenter and a node pool.
func in(name, dc, pool string) *nomad.Node {
	n := servicetest.Machine(name, 1)
	n.Plan.Datacenter, n.Plan.Pool = dc, pool
	return n
}

// A group goes where its job and its queue both let it: where they agree on nothing, it is
// refused with what the queue allows.
func TestWhereAJobMayRun(t *testing.T) {
	for name, row := range map[string]struct {
		queue string
		pool  string
		dcs   []string
		want  string // the node; empty: it is refused
		says  string
	}{
		"any":                              {pool: "all", want: "id-a"},
		"a pool":                           {pool: "big", want: "id-c"},
		"a datacenter":                     {pool: "all", dcs: []string{"east-2"}, want: "id-b"},
		"a glob":                           {pool: "all", dcs: []string{"*-2"}, want: "id-b"},
		"one of several":                   {pool: "all", dcs: []string{"nowhere", "east-[2]"}, want: "id-b"},
		"all of them":                      {pool: "all", dcs: []string{"nowhere", "*"}, want: "id-a"},
		"none that there is":               {pool: "all", dcs: []string{"nowhere"}, says: "can ever hold"},
		"the queue's pools":                {queue: `node_pools = ["big"]`, pool: "all", want: "id-c"},
		"what both name":                   {queue: `node_pools = ["other", "big"]`, pool: "big", want: "id-c"},
		"pools that the queue may not use": {queue: `node_pools = ["big", "other"]`, pool: "default", says: "queue q may use the node pool big, other, not default"},
		"the queue's datacenters":          {queue: `datacenters = ["east-2", "x"]`, pool: "all", want: "id-b"},
		"of the job's the queue's":         {queue: `datacenters = ["east-2"]`, pool: "all", dcs: []string{"east-*"}, want: "id-b"},
		"datacenters that it may not use":  {queue: `datacenters = ["east-2"]`, pool: "all", dcs: []string{"east-1"}, says: "queue q may use the datacenter east-2, not east-1"},
		"the queue's rules":                {queue: "constraint {\n attribute = \"meta.rack\"\n value = \"r2\"\n}", pool: "all", want: "id-b"},
		"in braces":                        {queue: "constraint {\n attribute = \"$${meta.rack}\"\n operator = \"!=\"\n value = \"r1\"\n}", pool: "all", want: "id-b"},
		"the job's own":                    {pool: "all", dcs: []string{"east-1", "east-2"}, want: "id-a"},
		"a queue may lower the priority":   {queue: "max_priority = 10", pool: "all", want: "id-a"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, c := in("a", "east-1", "default"), in("b", "east-2", "default"), in("c", "east-1", "big")
			for n, rack := range map[*nomad.Node]string{a: "r1", b: "r2", c: "r3"} {
				n.Plan.Attributes = map[string]string{"meta.rack": rack}
			}
			s := servicetest.New(t, "queue \"q\" {\n gpus = 8\n "+row.queue+"\n namespaces = [\"default\"]\n}\n", a, b, c)
			ask := servicetest.Ask("job", "1", 1)
			ask.NodePool, ask.Datacenters = row.pool, row.dcs
			d, err := s.Decide(t.Context(), []admit.Ask{ask}, true)
			var refused *admit.Refusal
			switch {
			case row.want == "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), row.says)):
				t.Errorf("got %+v, %v", d, err)
			case row.want != "" && (err != nil || len(d[0].Preferred) != 1 || d[0].Preferred[0] != row.want):
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// What is not a request is refused with what is wrong about it.
func TestWhatIsNotARequest(t *testing.T) {
	for name, row := range map[string]struct {
		change func(a *admit.Ask)
		says   string
	}{
		"a block of none":        {func(a *admit.Ask) { *a = blocks("job", "nvidia/slice", 0) }, `device "nvidia/slice": count 0: ask for at least one`},
		"an alternative of none": {func(a *admit.Ask) { *a = alternative(); a.Tasks[0].Devices[0].Or[0].Count = -1 }, `device "nvidia/gpu": count -1: ask for at least one`},
		"a policy that is none":  {func(a *admit.Ask) { a.Policy = "RANDOM" }, "RANDOM"},
		"more than any machine has": {func(a *admit.Ask) {
			a.Tasks[0].Request.Count, a.Tasks[0].Request.Kind, a.Tasks[0].Request.MemoryMiB = 1000, gpu.KindCount, 0
		}, `group "g" asks for`},
		"a second task that is too much": {func(a *admit.Ask) { second(a, "65") }, `group "g" asks for 65 GPUs on one node`},
		"a block beside a refused one":   {func(a *admit.Ask) { *a = blocks("job", "nvidia/gpu", 70_000) }, `group "g" asks for 65536 GPUs on one node`},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := servicetest.Ask("job", "8G", 1)
		row.change(&a)
		if d, err := s.Decide(t.Context(), []admit.Ask{a}, true); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %+v, %v", name, d, err)
		}
	}
}

// A device block is understood by its name as Nomad does: a type, a vendor and a type, or a
// group.
func TestWhatABlockNames(t *testing.T) {
	for name, want := range map[string]string{
		"slice": "slices 4", "nvidia/slice": "slices 4", "nvidia/slice/T4/0": "slices 4",
		"shared": "seats 4", "nvidia/shared": "seats 4", "nvidia/shared/T4/1": "seats 4",
		"gpu": "", "nvidia/gpu": "",
	} {
		s := servicetest.New(t, "", servicetest.SeatMachine("a", 1, 1, 50))
		_, err := s.Decide(t.Context(), []admit.Ask{blocks("job", name, 4)}, false)
		got := ""
		for _, one := range s.AllAssumed() {
			switch take := one.Usage.Takes[0]; {
			case take.Slices == 4:
				got = "slices 4"
			case take.Replicas == 4:
				got = "seats 4"
			}
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, want %q; %v", name, got, want, err)
		}
	}
}

// Default resources hold where a request names no vendor.
func TestTheDefaultVendor(t *testing.T) {
	theirs := servicetest.Machine("b", 1)
	for i := range theirs.Plan.GPUs {
		theirs.Plan.GPUs[i].Vendor = "huawei"
	}
	for _, row := range []struct{ word, request, want string }{
		{"gpu", "1", "id-a"}, {"nvidia", "1", "id-a"}, {"npu", "1", "id-b"}, {"npu", "1(nvidia)", "id-a"}, {"npu", "1(nvidia,T4)", "id-a"},
	} {
		s := servicetest.New(t, "default_resource_name = \""+row.word+"\"\n", servicetest.Machine("a", 1), theirs)
		d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", row.request, 1)}, true)
		if err != nil || len(d[0].Preferred) == 0 || d[0].Preferred[0] != row.want {
			t.Errorf("default %s, %s: %+v, %v", row.word, row.request, d, err)
		}
	}
}

// A job has a bounded number of groups decided about, since others wait meanwhile.
func TestTooManyGroupsAreRefused(t *testing.T) {
	for count, refused := range map[int]bool{500: false, 501: true} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		asks := make([]admit.Ask, count)
		for i := range asks {
			asks[i] = servicetest.Ask("job", "1G", 0)
			asks[i].Group = fmt.Sprint("g", i)
		}
		_, err := s.Decide(t.Context(), asks, true)
		var refusal *admit.Refusal
		if got := errors.As(err, &refusal) && refusal.Status == http.StatusUnprocessableEntity && strings.Contains(refusal.Text, "a job may have 500 at most"); got != refused || !refused && err != nil {
			t.Errorf("%d groups: %v", count, err)
		}
	}
}

// Tasks of one group go to one node, the best that has room for all of them; on one GPU they
// hold what both take.
func TestTasksOfAGroupShareANode(t *testing.T) {
	taken := map[string][]int64{ // slices in use of each GPU
		"a": {14}, "b": {13}, "c": {4, 10}, "d": {0, 0},
	}
	for name, row := range map[string]struct {
		first, second string
		machines      []string
		node          string // none: it waits
		takes         map[int]int64
	}{
		"both on the fullest GPU":           {"2G", "1G", []string{"a", "b", "c", "d"}, "id-b", map[int]int64{0: 3}},
		"the fullest has room for one only": {"2G", "8G", []string{"a", "c", "d"}, "id-c", map[int]int64{0: 8, 1: 2}},
		"one after the other is no answer":  {"2G", "2G", []string{"a", "b"}, "", nil},
		"two whole GPUs":                    {"1", "1", []string{"a", "c", "d"}, "id-d", map[int]int64{0: 16, 1: 16}},
	} {
		t.Run(name, func(t *testing.T) {
			var machines []*nomad.Node
			for _, m := range append(row.machines, "z") { // where it would fit, if nothing else was there
				gpus := 2
				if taken[m] != nil {
					gpus = len(taken[m])
				}
				machines = append(machines, servicetest.Machine(m, gpus))
			}
			s := servicetest.New(t, "", machines...)
			for _, m := range row.machines {
				for i, n := range taken[m] {
					if n > 0 {
						s.Tenant(t, m+string(rune('0'+i)), 50, m, i, 0, int(n))
					}
				}
			}
			for i := range 2 {
				s.Tenant(t, "z"+string(rune('0'+i)), 50, "z", i, 0, 16)
			}
			a := servicetest.Ask("job", row.first, 1)
			second(&a, row.second)
			d := s.Submit(t, a)
			if row.node == "" {
				if len(d.Preferred) > 0 || len(s.AllAssumed()) > 0 {
					t.Errorf("got %+v", d)
				}
				return
			}
			if len(d.Preferred) != 1 || d.Preferred[0] != row.node || len(s.AllAssumed()) != 1 {
				t.Fatalf("got %+v", d)
			}
			u := s.AllAssumed()[0].Usage
			got := map[int]int64{}
			for i, take := range u.Takes {
				got[take.GPU] += take.Slices
				if i > 0 && u.Takes[i-1].GPU >= take.GPU {
					t.Errorf("takes %+v are not in order", u.Takes)
				}
			}
			for at, n := range row.takes {
				if got[at] != n || len(got) != len(row.takes) {
					t.Errorf("takes %+v", u.Takes)
				}
			}
			if u.CPUMHz != a.CPUMHz || u.MemoryMiB != a.MemoryMiB || len(d.Tasks) != 2 || len(d.Tasks[1].Devices) != 1 {
				t.Errorf("holds %+v; %+v", u, d.Tasks)
			}
		})
	}
}

// Where none of many nodes has room for all of a group's tasks, it waits, and nothing stays
// booked.
func TestTasksThatFitNowhereTogetherWait(t *testing.T) {
	for _, nodes := range []int{2, 12} {
		var machines []*nomad.Node
		for i := range nodes {
			machines = append(machines, servicetest.Machine(string(rune('a'+i)), 2))
		}
		s := servicetest.New(t, "", machines...)
		for i := range nodes {
			s.Tenant(t, "tenant-"+string(rune('a'+i)), 50, string(rune('a'+i)), 0, 0, 16)
		}
		a := servicetest.Ask("job", "1", 1)
		second(&a, "1")
		if d := s.Submit(t, a); len(d.Preferred) > 0 || d.Outcome != "held" || len(s.AllAssumed()) > 0 {
			t.Errorf("%d nodes: %+v", nodes, d)
		}
		if d := s.Submit(t, servicetest.Ask("one", "1", nodes)); len(d.Preferred) != nodes {
			t.Errorf("%d nodes: the room is used by nothing, and others get %+v", nodes, d)
		}
	}
}
