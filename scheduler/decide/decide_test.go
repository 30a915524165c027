package decide

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestPlacementsCountUntilNomadShowsThem(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	first := ask("first", "10G", 1)
	if d := b.decide(t, first); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Fatalf("preferred %v", d.Preferred)
	}
	// Nomad does not show the first job yet, and still its room is gone.
	second := ask("second", "10G", 1)
	if d := b.decide(t, second); len(d.Preferred) != 0 || d.Hold != nil || !strings.Contains(strings.Join(d.Explanation, " "), "wait for room") {
		t.Errorf("the second job was given the same room: %+v", d)
	}
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 10)
	if len(b.book.flights) != 0 {
		t.Errorf("%d flights after the alloc landed", len(b.book.flights))
	}
	if d := b.decide(t, ask("third", "6G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

func TestPromisesThatNobodyKeepsEnd(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	b.decide(t, ask("never-arrives", "10G", 1))
	b.clock.at = b.clock.at.Add(unseen + time.Second)
	b.book.Heard()
	b.book.Expire()
	if d := b.decide(t, ask("next", "10G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is still gone: %+v", d)
	}
}

// A node that changes takes its usage with it. Once, releasing the usage
// emptied the very map that was to be booked again, and a full GPU looked
// free after the first measurement.
func TestUsageSurvivesAChangedNode(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	first := ask("first", "10G", 1)
	b.decide(t, first)
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 10)
	b.decide(t, ask("in-flight", "2G", 1))
	b.book.Measured("id-a", nomad.Measurements{"GPU-a-0": {Milli: 700, MemoryMiB: 9000}})
	again := machine("a", 1)
	again.Index++
	b.book.Apply([]nomad.Change{{Node: again}}, 99)
	if d := b.decide(t, ask("next", "5G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room was given twice: %+v", d)
	}
	if d := b.decide(t, ask("small", "4G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

func TestAnUnchangedAskComesOutAsBefore(t *testing.T) {
	b := newBench(t, "", machine("a", 2), machine("b", 2))
	a := ask("job", "0.5", 1)
	first := b.decide(t, a)
	b.register(a)
	b.run(a, "alloc-1", "a", 0, 0, 8)
	// The cluster changes, and another node would be better now.
	other := ask("other", "1", 1)
	b.decide(t, other)
	if second := b.decide(t, a); !reflect.DeepEqual(first, second) {
		t.Errorf("first %+v\nthen  %+v", first, second)
	}
	a.Count = 3
	third := b.decide(t, a)
	if !reflect.DeepEqual(first.Tasks, third.Tasks) {
		t.Errorf("a larger count changed the device blocks:\nfirst %+v\nthen  %+v", first.Tasks, third.Tasks)
	}
	a.Tasks[0].Request.Milli = 250
	if fourth := b.decide(t, a); fourth.Tasks[0].Devices[0].Count != 4 {
		t.Errorf("another request gave %+v", fourth.Tasks[0].Devices)
	}
}

func TestDeviceBlocks(t *testing.T) {
	for _, row := range []struct {
		request   string
		limit     int64
		counts    []int64
		share     gpu.Share
		constrain string
	}{
		{request: "8G", counts: []int64{8}},
		{request: "7500M", counts: []int64{8}, share: gpu.Share{MemoryMiB: 7500}},
		{request: "8G,0.25", counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250}},
		{request: "8G,0.25", limit: 800, counts: []int64{8}, share: gpu.Share{GuaranteeMilli: 250, LimitMilli: 800}},
		{request: "0.5", counts: []int64{8}, constrain: "${device.attr.slices} = 16"},
		{request: "0.25(T4)", counts: []int64{4}, constrain: "${device.attr.type} = T4; ${device.attr.slices} = 16"},
		{request: "1", counts: []int64{16}, constrain: "${device.attr.slices} = 16"},
		{request: "2", counts: []int64{16, 16}, constrain: "${device.attr.slices} = 16"},
		{request: "16G", counts: []int64{16}},
	} {
		b := newBench(t, "", machine("a", 2))
		a := ask("job", row.request, 1)
		a.Tasks[0].LimitMilli = row.limit
		d := b.decide(t, a)
		var counts []int64
		for _, device := range d.Tasks[0].Devices {
			counts = append(counts, device.Count)
			if device.Name != "nvidia/slice" || device.Prefer == "" {
				t.Errorf("%s: block %+v", row.request, device)
			}
		}
		var constraints []string
		for _, c := range d.Tasks[0].Devices[0].Constraints {
			constraints = append(constraints, c.LTarget+" "+c.Operand+" "+c.RTarget)
		}
		if !slices.Equal(counts, row.counts) || d.Tasks[0].Share != row.share || strings.Join(constraints, "; ") != row.constrain {
			t.Errorf("%s: counts %v, share %+v, constraints %q", row.request, counts, d.Tasks[0].Share, constraints)
		}
	}
}

func TestRefusals(t *testing.T) {
	const queues = `
queue "small" {
  gpus       = 1
  borrow     = false
  namespaces = ["small"]
  models     = ["T4"]
}`
	for _, row := range []struct {
		change func(*admit.Ask)
		status int
		says   string
	}{
		{func(a *admit.Ask) { a.Tasks[0].Request.MemoryMiB = 20 << 10 }, 422, "memory too small"},
		{func(a *admit.Ask) { a.Tasks[0].Request, _ = gpu.ParseRequest("999999G") }, 422, "memory too small"},
		{func(a *admit.Ask) { a.Tasks[0].Request, _ = gpu.ParseRequest("65") }, 422, `group "g" asks for 65 GPUs on one node`},
		{func(a *admit.Ask) { a.Tasks[0].Request.Model = "A100" }, 422, "other model"},
		{func(a *admit.Ask) { a.NodePool = "none" }, 422, "can ever hold"},
		{func(a *admit.Ask) { a.Queue = "small" }, 403, "may not use queue"},
		{func(a *admit.Ask) { a.Queue = "none" }, 403, "does not exist"},
		{func(a *admit.Ask) { a.Namespace = "small"; a.Tasks[0].Request.Model = "V100" }, 403, "may use GPUs of model T4"},
		{func(a *admit.Ask) { a.Namespace = "small"; a.Count = 3 }, 403, "at most 1"},
		{func(a *admit.Ask) { a.Reservation = "r-1" }, 409, "does not exist"},
	} {
		b := newBench(t, queues, machine("a", 2))
		a := ask("job", "8G", 1)
		row.change(&a)
		_, err := b.Decide(t.Context(), []admit.Ask{a}, false)
		var refusal *admit.Refusal
		if !errors.As(err, &refusal) || refusal.Status != row.status || !strings.Contains(err.Error(), row.says) {
			t.Errorf("want %d %q, got %v", row.status, row.says, err)
		}
		if len(b.book.flights) != 0 {
			t.Errorf("%q: a refusal left %d flights", row.says, len(b.book.flights))
		}
	}
}

func TestOnlyALeaderWithAViewDecides(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	asks := []admit.Ask{ask("job", "8G", 1)}
	b.leading = func() bool { return false }
	if _, err := b.Decide(t.Context(), asks, false); !errors.Is(err, ErrNotLeading) {
		t.Errorf("got %v", err)
	}
	if _, err := b.Decide(t.Context(), asks, true); err != nil {
		t.Errorf("a dry run needs no leader: %v", err)
	}
	b.clock.at = b.clock.at.Add(tooOld + time.Second)
	if _, err := b.Decide(t.Context(), asks, true); !errors.Is(err, ErrBlind) {
		t.Errorf("got %v", err)
	}
}

func TestDryRunLeavesNoTrace(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	if _, err := b.Decide(t.Context(), []admit.Ask{ask("job", "8G", 1)}, true); err != nil {
		t.Fatal(err)
	}
	if len(b.book.flights) != 0 || len(b.store.items) != 0 || len(b.book.usages["id-a"]) != 0 {
		t.Errorf("%d flights, %d variables", len(b.book.flights), len(b.store.items))
	}
}

func TestARefusedJobIsTakenBack(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "8G", 1)
	before := b.decide(t, a)
	b.register(a)
	b.run(a, "alloc-1", "a", 0, 0, 8)
	changed := ask("job", "4G", 1)
	d, err := b.Decide(t.Context(), []admit.Ask{changed}, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), []admit.Ask{changed}, d, false)
	if after := b.decide(t, a); !reflect.DeepEqual(before, after) {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
}

// conflicting is a store in which somebody else is always faster.
type conflicting struct{ *memory }

func (c conflicting) Put(context.Context, nomad.Item) (uint64, error) {
	return 0, fmt.Errorf("put: %w", nomad.ErrConflict)
}

func TestALostRaceIsRefusedAndForgotten(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	b.Decider.store = conflicting{b.store}
	_, err := b.Decide(t.Context(), []admit.Ask{ask("job", "8G", 1)}, false)
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != 409 || len(b.book.flights) != 0 {
		t.Errorf("%v, %d flights", err, len(b.book.flights))
	}
}

func TestHeldByQuotaThenReleased(t *testing.T) {
	b := newBench(t, "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}", machine("a", 2))
	first := ask("first", "1", 1)
	b.decide(t, first)
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 16)
	second := ask("second", "0.5", 1)
	d := b.decide(t, second)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota || !strings.Contains(d.Hold.Sentence, "queue q holds 1 of at most 1") {
		t.Fatalf("got %+v", d.Hold)
	}
	b.register(second)
	b.block(second, 1)
	if due := b.book.NextDue(nil); due != nil {
		t.Errorf("nothing can be done, and yet %+v", due)
	}
	b.end("alloc-1")
	due := b.book.NextDue(nil)
	if due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{second}, due.Revision)
	if err != nil || again == nil || again[0].Hold != nil || len(again[0].Preferred) != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}

func TestVictims(t *testing.T) {
	const quick = "preemption {\n min_run_time = \"0s\"\n}\n"
	type tenant struct {
		job              string
		priority, slices int
		namespace        string
	}
	for name, row := range map[string]struct {
		config    string
		tenants   []tenant
		priority  int
		namespace string
		want      []string
	}{
		"the lowest priority goes, though a higher one would do": {quick, []tenant{{"low", 20, 5, ""}, {"middle", 30, 11, ""}}, 80, "", []string{"low"}},
		"the least that suffices":                                {quick, []tenant{{"x", 20, 1, ""}, {"y", 20, 10, ""}, {"z", 20, 5, ""}}, 80, "", []string{"z"}},
		"what is not needed is given back":                       {quick, []tenant{{"small", 10, 2, ""}, {"big", 20, 14, ""}}, 80, "", []string{"big"}},
		"never equals":                                           {quick, []tenant{{"x", 50, 16, ""}}, 50, "", nil},
		"never useless":                                          {quick, []tenant{{"low", 20, 2, ""}, {"high", 90, 14, ""}}, 80, "", nil},
		"never before the minimum run time":                      {"", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"never a protected queue":                                {quick + "queue \"q\" {\n protected = true\n namespaces = [\"p\"]\n}", []tenant{{"x", 20, 16, "p"}}, 80, "", nil},
		"not when it is switched off":                            {"preemption {\n enabled = false\n min_run_time = \"0s\"\n}", []tenant{{"x", 20, 16, ""}}, 80, "", nil},
		"a queue takes its own back from equals": {
			quick + "queue \"o\" {\n gpus = 1\n namespaces = [\"o\"]\n}\nqueue \"l\" {\n gpus = 0\n namespaces = [\"l\"]\n}",
			[]tenant{{"x", 50, 16, "l"}}, 50, "o", []string{"x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, row.config, machine("a", 1))
			from := 0
			for _, v := range row.tenants {
				a := ask(v.job, "1G", 1)
				a.Priority = v.priority
				if v.namespace != "" {
					a.Namespace = v.namespace
				}
				b.register(a)
				b.run(a, "alloc-"+v.job, "a", 0, from, v.slices)
				from += v.slices
			}
			a := ask("waiting", "5G", 1)
			a.Priority = row.priority
			if row.namespace != "" {
				a.Namespace = row.namespace
			}
			b.decide(t, a)
			b.register(a)
			b.block(a, 1)
			b.clock.at = b.clock.at.Add(settled + time.Second)
			due := b.book.NextDue(nil)
			var got []string
			if due != nil && due.Evict != nil {
				for _, v := range due.Evict.Victims {
					got = append(got, v.Job.ID)
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("victims %v, want %v", got, row.want)
			}
		})
	}
}

func TestRoomThatIsMadeIsNotGivenAway(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1))
	low := ask("low", "16G", 1)
	low.Priority = 20
	b.register(low)
	b.run(low, "alloc-low", "a", 0, 0, 16)
	high := ask("high", "8G", 1)
	high.Priority = 80
	b.decide(t, high)
	b.register(high)
	b.block(high, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil)
	if due == nil || due.Evict == nil {
		t.Fatalf("due is %+v", due)
	}
	b.book.Make(due.Evict)
	out, err := b.Revise(t.Context(), []admit.Ask{low}, Revision{Group: "g", Exclude: "id-a", For: "default/high"})
	if err != nil || !slices.Equal(out[0].Candidates, []string{noNode}) {
		t.Fatalf("the victim may come back to %v, %v", out, err)
	}
	b.end("alloc-low")
	if d := b.decide(t, ask("thief", "10G", 1)); len(d.Preferred) != 0 {
		t.Errorf("a newcomer was sent into the room: %+v", d)
	}
	b.run(high, "alloc-high", "a", 0, 0, 8)
	b.book.Apply([]nomad.Change{{Unblocked: &nomad.JobKey{Namespace: "default", ID: "high"}}}, 99)
	if due := b.book.NextDue(nil); due == nil || due.Job.ID != "low" || !slices.Equal(due.Revision.Include, []string{"id-a"}) {
		t.Errorf("the node is not taken back in: %+v", due)
	}
}

func TestReservations(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	r, _ := gpu.ParseRequest("10G")
	hold, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false)
	if err != nil || hold.MemoryMiB != 10*1024 || hold.NodeName != "a" {
		t.Fatalf("got %+v, %v", hold, err)
	}
	if got, err := b.Held(hold.ID); err != nil || got.ID != hold.ID {
		t.Errorf("held is %+v, %v", got, err)
	}
	if _, err := b.Held("r-none"); !errors.Is(err, reserve.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if d := b.decide(t, ask("other", "8G", 1)); len(d.Preferred) != 0 {
		t.Error("reserved room was given away")
	}
	a := ask("claims", "8G", 1)
	a.Reservation = hold.ID
	if d := b.decide(t, a); len(d.Preferred) != 1 {
		t.Errorf("the claim got %+v", d)
	}
	if len(b.store.items) != 2 { // two decisions, no reservation
		t.Errorf("%d variables are stored", len(b.store.items))
	}
	again := ask("again", "1G", 1)
	again.Reservation = hold.ID
	if _, err := b.Decide(t.Context(), []admit.Ask{again}, false); err == nil {
		t.Error("a reservation was claimed twice")
	}
	many, _ := gpu.ParseRequest("65")
	if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: many, For: time.Minute}, false); err == nil || strings.Contains(err.Error(), "r-") {
		t.Errorf("got %v", err)
	}
	big, _ := gpu.ParseRequest("40G")
	if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: big, For: time.Minute}, false); err == nil || !strings.Contains(err.Error(), "ever") {
		t.Errorf("got %v", err)
	}
}

func TestANewLeaderKnowsWhatTheOldOnePromised(t *testing.T) {
	old := newBench(t, "", machine("a", 1))
	a := ask("job", "10G", 1)
	old.decide(t, a)
	r, _ := gpu.ParseRequest("4G")
	if _, err := old.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false); err != nil {
		t.Fatal(err)
	}
	next := newBench(t, "", machine("a", 1))
	next.store = old.store
	next.Decider.store = old.store
	next.clock.at = old.clock.at.Add(time.Second)
	next.book.Heard()
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := next.decide(t, ask("other", "4G", 1)); len(d.Preferred) != 0 {
		t.Errorf("promised room was given away: %+v", d)
	}
	if d := next.decide(t, ask("small", "2G", 1)); len(d.Preferred) != 1 {
		t.Errorf("free room was not given: %+v", d)
	}
}

// TestBookKeepsCount lets jobs come, land, end and nodes change at random, and
// compares the books with what the allocs add up to.
func TestBookKeepsCount(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	b := newBench(t, "queue \"q\" {\n gpus = 100\n namespaces = [\"default\"]\n}", machine("a", 2), machine("b", 2))
	type running struct {
		id              string
		ask             admit.Ask
		node            string
		gpu, from, size int
	}
	var live []running
	used := map[string]bool{}
	for i := range 2000 {
		switch random.IntN(4) {
		case 0, 1:
			size := 1 + random.IntN(6)
			a := ask(fmt.Sprintf("j%d", i), fmt.Sprintf("%dG", size), 1)
			b.decide(t, a)
			b.register(a)
			node, index := []string{"a", "b"}[random.IntN(2)], random.IntN(2)
			for from := 0; from+size <= 16; from++ {
				free := true
				for k := range size {
					free = free && !used[instance(node, index, from+k)]
				}
				if !free {
					continue
				}
				for k := range size {
					used[instance(node, index, from+k)] = true
				}
				r := running{fmt.Sprintf("alloc-%d", i), a, node, index, from, size}
				b.run(a, r.id, node, index, from, size)
				live = append(live, r)
				break
			}
		case 2:
			if len(live) > 0 {
				k := random.IntN(len(live))
				r := live[k]
				b.end(r.id)
				for s := range r.size {
					delete(used, instance(r.node, r.gpu, r.from+s))
				}
				live = append(live[:k], live[k+1:]...)
			}
		case 3:
			again := machine([]string{"a", "b"}[random.IntN(2)], 2)
			b.book.Apply([]nomad.Change{{Node: again}}, 0)
		}
		if random.IntN(10) == 0 {
			b.clock.at = b.clock.at.Add(time.Minute)
			b.book.Heard()
			b.book.Expire()
		}
		want := map[string]int64{}
		for _, r := range live {
			want[r.node] += int64(r.size)
		}
		for _, f := range b.book.flights {
			want[strings.TrimPrefix(f.usage.NodeID, "id-")] += f.usage.Takes[0].Slices
		}
		sum := Charge{}
		for _, node := range []string{"a", "b"} {
			var got int64
			for _, u := range b.book.usagesOn("id-" + node) {
				got += u.Takes[0].Slices
				sum = sum.plus(chargeOf(b.book.nodes["id-"+node], u.Takes))
			}
			if got != want[node] {
				t.Fatalf("step %d: node %s holds %d slices in the book, want %d", i, node, got, want[node])
			}
		}
		if b.book.taken["q"] != sum {
			t.Fatalf("step %d: the queue is charged %+v, its work costs %+v", i, b.book.taken["q"], sum)
		}
	}
}

func TestMemoryIsFoundInAMIGInstance(t *testing.T) {
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
	b := newBench(t, "", machine("a", 1), nomad.NewNode(n, nomad.Hardware{}))
	for request, want := range map[string]string{"8G": "nvidia/slice", "30G": "nvidia/mig/3g.40gb", "20G(A100)": "nvidia/mig/3g.40gb"} {
		d := b.decide(t, ask("job-"+request, request, 1))
		if got := d.Tasks[0].Devices[0]; got.Name != want {
			t.Errorf("%s: got %+v, want %s", request, got, want)
		}
	}
	if _, err := b.Decide(t.Context(), []admit.Ask{ask("huge", "100G", 1)}, false); err == nil {
		t.Error("100G was found somewhere")
	}
}

// In a cluster that Nomad does not look at as a whole, the candidates are
// narrowed, hold the preferred node, and are widened when none of them is left.
func TestCandidates(t *testing.T) {
	var machines []*nomad.Node
	for i := range 150 {
		machines = append(machines, machine(fmt.Sprintf("m%03d", i), 1))
	}
	b := newBench(t, "placement {\n candidates = 10\n}", machines...)
	a := ask("job", "8G", 1)
	d := b.decide(t, a)
	if len(d.Candidates) != 10 || !slices.Contains(d.Candidates, d.Preferred[0]) {
		t.Fatalf("candidates %v, preferred %v", d.Candidates, d.Preferred)
	}
	b.register(a)
	b.run(a, "alloc", strings.TrimPrefix(d.Preferred[0], "id-"), 0, 0, 8)
	for _, id := range d.Candidates {
		dead := machine(strings.TrimPrefix(id, "id-"), 1)
		dead.Index, dead.Plan.Ineligible, dead.View.Status = 2, true, "down"
		b.book.Apply([]nomad.Change{{Node: dead}}, 50)
	}
	b.end("alloc")
	b.block(a, 1)
	due := b.book.NextDue(nil)
	if due == nil || !due.Revision.Retry {
		t.Fatalf("all candidates are dead, and due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil || again == nil || slices.Contains(d.Candidates, again[0].Preferred[0]) {
		t.Fatalf("got %+v, %v", again, err)
	}
	if !reflect.DeepEqual(again[0].Tasks, d.Tasks) {
		t.Errorf("the device blocks changed:\nfrom %+v\nto   %+v", d.Tasks, again[0].Tasks)
	}
}

func TestMoves(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1), machine("b", 1))
	for _, name := range []string{"a", "b"} {
		a := ask("job-"+name, "7G", 1)
		b.decide(t, a)
		b.register(a)
		b.run(a, "alloc-"+name, name, 0, 0, 7)
	}
	for _, m := range b.book.Moves(5) {
		if m.From == m.To || b.book.allocs[m.AllocID] == nil || m.Text == "" {
			t.Errorf("a move that cannot be: %+v", m)
		}
		b.book.Reserve(&m)
		if len(b.book.flights) != 1 || b.book.Moves(5) != nil {
			t.Error("more moves are proposed while one is under way")
		}
		b.book.Cancel(&m)
	}
}

// A changed request replaces what runs, so it is placed as if that were gone;
// until it is gone, nobody else gets the room.
func TestAChangedRequestMayUseItsOwnRoom(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "10G", 1)
	b.decide(t, a)
	b.register(a)
	b.run(a, "alloc", "a", 0, 0, 10)
	if d := b.decide(t, ask("job", "12G", 1)); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Errorf("preferred %v", d.Preferred)
	}
	if d := b.decide(t, ask("other", "3G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room of both the old and the new alloc was given away: %+v", d)
	}
	b.end("alloc")
	if d := b.decide(t, ask("other", "3G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the old alloc's room is not free: %+v", d)
	}
}

// Work that Nomad starts later, or on every node, gets its device blocks and
// nothing that belongs to one placement.
func TestWorkWithoutAPlaceOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*admit.Ask){
		"system":   func(a *admit.Ask) { a.JobType = "system" },
		"sysbatch": func(a *admit.Ask) { a.JobType = "sysbatch" },
		"periodic": func(a *admit.Ask) { a.JobType, a.Later = "batch", true },
	} {
		b := newBench(t, "", machine("a", 1), machine("b", 1))
		a := ask("job", "4G", 1)
		change(&a)
		d := b.decide(t, a)
		device := d.Tasks[0].Devices[0]
		if device.Count != 4 || device.Prefer != "" || len(d.Preferred) != 0 || d.Hold != nil || len(b.book.flights) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Nomad counts slices only, so nothing keeps two such allocs off one GPU.
func TestComputeBeyondMemoryIsWarnedOf(t *testing.T) {
	for _, row := range []struct {
		request string
		count   int
		want    bool
	}{{"4G,0.75", 2, true}, {"4G,0.75", 1, false}, {"4G", 2, false}, {"8G,0.25", 2, false}, {"1", 2, false}} {
		b := newBench(t, "", machine("a", 2))
		d := b.decide(t, ask("job", row.request, row.count))
		if got := slices.Contains(d.Explanation, unpinned); got != row.want {
			t.Errorf("%s, count %d: %q", row.request, row.count, d.Explanation)
		}
	}
}

func TestTooMuchMemoryIsTheReasonInAnyMode(t *testing.T) {
	b := newBench(t, "", wholeMachine("a"))
	_, err := b.Decide(t.Context(), []admit.Ask{ask("job", "999999G", 1)}, false)
	if err == nil || !strings.Contains(err.Error(), "memory too small") {
		t.Errorf("got %v", err)
	}
}

// The constraints that users write are judged as Nomad does.
func TestConstraints(t *testing.T) {
	attributes := map[string]string{"attr.kernel.name": "linux", "attr.cores": "16", "meta.rack": "r1,r2"}
	for _, row := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${attr.kernel.name}", "=", "linux", true},
		{"${attr.kernel.name}", "!=", "linux", false},
		{"${attr.none}", "!=", "x", true},
		{"${attr.none}", "=", "x", false},
		{"${attr.none}", "is_set", "", false},
		{"${attr.none}", "is_not_set", "", true},
		{"${attr.cores}", ">=", "8", true},
		{"${attr.cores}", "<", "9", false},
		{"${attr.kernel.name}", "regexp", "^lin", true},
		{"${meta.rack}", "set_contains", "r1,r2", true},
		{"${meta.rack}", "set_contains", "r1,r3", false},
		{"${meta.rack}", "set_contains_any", "r3, r2", true},
		{"", "distinct_hosts", "true", true},
		{"${attr.cores}", "semver", ">= 1", true}, // Nomad's business
	} {
		if got := holds(admit.Constraint{LTarget: row.left, Operand: row.operand, RTarget: row.right}, attributes); got != row.want {
			t.Errorf("%s %s %s: %v", row.left, row.operand, row.right, got)
		}
	}
	b := newBench(t, "", machine("a", 1), machine("b", 1))
	a := ask("job", "4G", 1)
	a.Constraints = []admit.Constraint{{LTarget: "${node.unique.name}", Operand: "regexp", RTarget: "b"}}
	if d := b.decide(t, a); !slices.Equal(d.Preferred, []string{"id-b"}) {
		t.Errorf("preferred %v", d.Preferred)
	}
}
