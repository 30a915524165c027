// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// held books a usage of a share of one GPU of a node, started an hour ago.
func held(t *testing.T, s *Snapshot, id, node string, gpu int, milli int64, priority int, change ...func(*Usage)) {
	t.Helper()
	u := Usage{
		ID: id, NodeID: node, Priority: priority, CPUMHz: 1000, MemoryMiB: 1024, Start: noon.Add(-time.Hour),
		Takes: []Take{{GPU: gpu, Milli: milli, Slices: (milli*80 + 999) / 1000}},
	}
	for _, c := range change {
		c(&u)
	}
	if err := s.Apply(u); err != nil {
		t.Fatal(err)
	}
}

func inQueue(name string) func(*Usage) { return func(u *Usage) { u.Queue = name } }

func victims(p Plan) string {
	var ids []string
	for _, v := range p.Victims {
		ids = append(ids, v.ID)
	}
	return strings.Join(ids, " ")
}

func TestPreemptChoosesVictims(t *testing.T) {
	recent := func(u *Usage) { u.Start = noon.Add(-time.Minute) }
	for _, c := range []struct {
		name string
		fill func(t *testing.T, s *Snapshot)
		ask  string
		want string // victims; "none" when it must fail
	}{
		{"room means no victims", func(t *testing.T, s *Snapshot) { held(t, s, "a", "n1", 0, 500, 10) }, "0.5", ""},
		{"lowest priority first", func(t *testing.T, s *Snapshot) {
			held(t, s, "low", "n1", 0, 1000, 10)
			held(t, s, "mid", "n1", 1, 1000, 20)
		}, "0.5", "low"},
		{"even when several low ones go for one higher", func(t *testing.T, s *Snapshot) {
			held(t, s, "low1", "n1", 0, 500, 10)
			held(t, s, "low2", "n1", 0, 500, 10)
			held(t, s, "mid", "n1", 1, 1000, 20)
		}, "1", "low1 low2"},
		{"fewest of one priority", func(t *testing.T, s *Snapshot) {
			held(t, s, "big", "n1", 0, 900, 10)
			held(t, s, "half1", "n1", 1, 450, 10)
			held(t, s, "half2", "n1", 1, 450, 10)
		}, "0.9", "big"},
		{"fewest on another GPU", func(t *testing.T, s *Snapshot) {
			for i := range 3 {
				held(t, s, fmt.Sprint("third", i), "n1", 0, 320, 10)
			}
			held(t, s, "most", "n1", 1, 900, 10)
			held(t, s, "rest", "n1", 1, 100, 10)
		}, "1", "most rest"},
		{"least work lost of equals", func(t *testing.T, s *Snapshot) {
			held(t, s, "old", "n1", 0, 1000, 10)
			held(t, s, "young", "n1", 1, 1000, 10, recent)
		}, "1", "young"},
		{"saved work is not lost", func(t *testing.T, s *Snapshot) {
			held(t, s, "saved", "n1", 0, 1000, 10, func(u *Usage) { u.WorkSaved = time.Hour })
			held(t, s, "young", "n1", 1, 1000, 10, recent)
		}, "1", "saved"},
		{"only what is needed", func(t *testing.T, s *Snapshot) {
			held(t, s, "a", "n1", 0, 300, 10)
			held(t, s, "b", "n1", 0, 700, 10)
			held(t, s, "c", "n1", 1, 1000, 30)
		}, "0.25", "a"},
		{"never equal priority", func(t *testing.T, s *Snapshot) {
			held(t, s, "a", "n1", 0, 1000, 50)
			held(t, s, "b", "n1", 1, 1000, 60)
		}, "1", "none"},
		{"never before its minimum run time", func(t *testing.T, s *Snapshot) {
			held(t, s, "a", "n1", 0, 1000, 10, func(u *Usage) { u.MinRun = 2 * time.Hour })
			held(t, s, "b", "n1", 1, 1000, 20)
		}, "1", "b"},
		{"several GPUs", func(t *testing.T, s *Snapshot) {
			held(t, s, "a", "n1", 0, 100, 10)
			held(t, s, "b", "n1", 1, 100, 20)
		}, "2", "a b"},
		{"useless evictions never", func(t *testing.T, s *Snapshot) {
			held(t, s, "a", "n1", 0, 1000, 10)
			held(t, s, "b", "n1", 1, 1000, 90)
		}, "2", "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPlanner(t, testNode("n1", "A100", 2))
			c.fill(t, p.snap)
			r := ask(t, "new", c.ask)
			r.Priority = 50
			plan, err := p.Preempt([]Request{r}, noon)
			if c.want == "none" {
				if !errors.Is(err, ErrNoRoom) {
					t.Fatalf("victims %q, error %v; want ErrNoRoom", victims(plan), err)
				}
				return
			}
			if err != nil || victims(plan) != c.want {
				t.Fatalf("victims %q, %v; want %q", victims(plan), err, c.want)
			}
		})
	}
}

func TestPreemptForGang(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 1), testNode("n2", "A100", 1))
	held(t, p.snap, "a", "n1", 0, 1000, 10)
	held(t, p.snap, "b", "n2", 0, 1000, 10)
	gang := []Request{ask(t, "g1", "1"), ask(t, "g2", "1")}
	for i := range gang {
		gang[i].Priority = 50
	}
	plan, err := p.Preempt(gang, noon)
	if err != nil || victims(plan) != "a b" || plan.Placements[0].NodeID == plan.Placements[1].NodeID {
		t.Fatalf("%+v, %v", plan, err)
	}
	gang = append(gang, ask(t, "g3", "1"))
	if plan, err := p.Preempt(gang, noon); err == nil {
		t.Fatalf("three do not fit two GPUs: %+v", plan)
	}
}

func TestGangIsAllOrNothing(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 2))
	gang := []Request{ask(t, "g1", "0.5"), ask(t, "g2", "1"), ask(t, "g3", "0.5")}
	pls, err := p.PlaceGang(gang)
	if err != nil || len(pls) != 3 || pls[0].Usage.ID != "g1" {
		t.Fatalf("%+v, %v", pls, err)
	}
	if free, _ := p.snap.Free("n1"); free.GPUs[0].Tasks+free.GPUs[1].Tasks != 0 {
		t.Fatal("placing a gang booked something")
	}
	if _, err := p.PlaceGang(append(gang, ask(t, "g4", "0.1"))); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("four do not fit: %v", err)
	}
}

func quotaPlanner(t *testing.T, gpus int, queues ...Queue) *Planner {
	t.Helper()
	p := testPlanner(t, testNode("n1", "A100", gpus))
	q, err := NewQuotas(queues)
	if err != nil {
		t.Fatal(err)
	}
	p.SetQuotas(q, nil)
	return p
}

func TestQuotas(t *testing.T) {
	p := quotaPlanner(t, 4, Queue{Name: "a", GuaranteeMilli: 2000, LimitMilli: 3000}, Queue{Name: "b", GuaranteeMilli: 2000})
	for i := range 3 {
		held(t, p.snap, fmt.Sprint("a", i), "n1", i, 1000, 50+i, inQueue("a"))
	}
	r := ask(t, "more", "0.5")
	r.Queue, r.Priority = "a", 90
	if _, err := p.Place(&r); !errors.Is(err, ErrQuota) {
		t.Errorf("over the limit: %v", err)
	}
	if plan, err := p.Preempt([]Request{r}, noon); err != nil || victims(plan) != "a0" {
		t.Errorf("at its limit a queue makes room in itself: %q, %v", victims(plan), err)
	}
	b := ask(t, "b1", "2")
	b.Queue, b.Priority = "b", 10
	if plan, err := p.Preempt([]Request{b}, noon); err != nil || victims(plan) != "a0" {
		t.Errorf("the owner gets back what was borrowed: %q, %v", victims(plan), err)
	}
	b = ask(t, "b2", "3")
	b.Queue, b.Priority = "b", 10
	if plan, err := p.Preempt([]Request{b}, noon); err == nil {
		t.Errorf("more than the guarantee is not reclaimed: %q", victims(plan))
	}
	b.Priority, b.Queue = 90, "nobody"
	if _, err := p.Place(&b); !errors.Is(err, ErrQuota) {
		t.Errorf("an unknown queue: %v", err)
	}
}

// A guarantee of memory is kept like one of compute, and the limit too.
func TestMemoryQuotas(t *testing.T) {
	p := quotaPlanner(t, 2, Queue{Name: "a", GuaranteeMemoryMiB: 80 << 10, LimitMemoryMiB: 120 << 10}, Queue{Name: "b"})
	held(t, p.snap, "b0", "n1", 0, 1000, 50, inQueue("b"))
	held(t, p.snap, "b1", "n1", 1, 600, 90, inQueue("b"))
	if got := p.quotas.Borrowed(p.snap, "b"); got != (Charge{Milli: 1600, MemoryMiB: 128 << 10}) {
		t.Errorf("a queue without a guarantee borrows all that it holds, not %+v", got)
	}
	r := ask(t, "a0", "79G")
	r.Queue, r.Priority = "a", 10
	if plan, err := p.Preempt([]Request{r}, noon); err != nil || victims(plan) != "b0" {
		t.Fatalf("the owner gets its memory back: %q, %v", victims(plan), err)
	}
	if _, err := p.snap.Release("b0"); err != nil {
		t.Fatal(err)
	}
	held(t, p.snap, "a1", "n1", 0, 1000, 95, inQueue("a"))
	r = ask(t, "a2", "40G")
	r.Queue, r.Priority = "a", 95
	if plan, err := p.Preempt([]Request{r}, noon); err != nil || victims(plan) != "b1" {
		t.Errorf("beyond its guarantee only priority counts: %q, %v", victims(plan), err)
	}
	r = ask(t, "a3", "41G")
	r.Queue = "a"
	if _, err := p.Place(&r); !errors.Is(err, ErrQuota) || !strings.Contains(err.Error(), "80 GiB of at most 120 GiB of GPU memory") {
		t.Errorf("over the limit: %v", err)
	}
}

// Protected work gives way to the owner of what it borrowed, and to no other.
func TestProtectedQueues(t *testing.T) {
	p := quotaPlanner(t, 1, Queue{Name: "a", Protected: true}, Queue{Name: "b", GuaranteeMilli: 1000})
	held(t, p.snap, "a0", "n1", 0, 1000, 10, inQueue("a"))
	for queue, want := range map[string]string{"": "", "a": "", "b": "a0"} {
		r := ask(t, "new", "1")
		r.Queue, r.Priority = queue, 90
		if plan, err := p.Preempt([]Request{r}, noon); victims(plan) != want || (want == "") != errors.Is(err, ErrNoRoom) {
			t.Errorf("for queue %q: victims %q, %v", queue, victims(plan), err)
		}
	}
}

// What was not promised is the owner's to take, also from work of no queue.
func TestWorkWithoutAQueueGivesWayToOwners(t *testing.T) {
	p := quotaPlanner(t, 1, Queue{Name: "a", GuaranteeMilli: 1000})
	held(t, p.snap, "x", "n1", 0, 1000, 90)
	r := ask(t, "new", "1")
	r.Queue, r.Priority = "a", 10
	if plan, err := p.Preempt([]Request{r}, noon); err != nil || victims(plan) != "x" {
		t.Errorf("victims %q, %v", victims(plan), err)
	}
}

// Work within its guarantee stays, whatever the priority of those who borrow.
func TestBorrowersDoNotEvictOwners(t *testing.T) {
	p := quotaPlanner(t, 2, Queue{Name: "a", GuaranteeMilli: 1000}, Queue{Name: "b", GuaranteeMilli: 1000})
	held(t, p.snap, "a0", "n1", 0, 1000, 90, inQueue("a"))
	held(t, p.snap, "b0", "n1", 1, 1000, 10, inQueue("b"))
	r := ask(t, "a1", "1")
	r.Queue, r.Priority = "a", 90
	if plan, err := p.Preempt([]Request{r}, noon); err == nil {
		t.Errorf("victims %q", victims(plan))
	}
}

// org's two teams share its guarantee: they settle borrowing among themselves
// before any other work is touched, and limits hold on every level.
func TestQuotasAreHierarchical(t *testing.T) {
	p := quotaPlanner(t, 4,
		Queue{Name: "org", GuaranteeMilli: 3000, LimitMilli: 3000},
		Queue{Name: "x", Parent: "org", GuaranteeMilli: 1000}, Queue{Name: "y", Parent: "org", GuaranteeMilli: 2000},
		Queue{Name: "other", GuaranteeMilli: 1000})
	for i := range 3 {
		held(t, p.snap, fmt.Sprint("x", i), "n1", i, 1000, 50, inQueue("x"))
	}
	held(t, p.snap, "o0", "n1", 3, 1000, 10, inQueue("other"))
	r := ask(t, "y0", "1")
	r.Queue, r.Priority = "y", 20
	if _, err := p.Place(&r); !errors.Is(err, ErrQuota) {
		t.Errorf("the parent's limit: %v", err)
	}
	if used := p.quotas.Used(p.snap, "org"); used.Milli != 3000 {
		t.Errorf("org uses %+v", used)
	}
}

func TestNewQuotasRefuses(t *testing.T) {
	for _, c := range []struct {
		says   string
		queues []Queue
	}{
		{"there twice", []Queue{{Name: "a"}, {Name: "a"}}},
		{`parent "b" does not exist`, []Queue{{Name: "a", Parent: "b"}}},
		{"own ancestor", []Queue{{Name: "a", Parent: "b"}, {Name: "b", Parent: "a"}}},
		{"at most 0.001 GPUs", []Queue{{Name: "a", GuaranteeMilli: 2, LimitMilli: 1}}},
		{"promised 2 MiB and may hold at most 1 MiB", []Queue{{Name: "a", GuaranteeMemoryMiB: 2, LimitMemoryMiB: 1}}},
		{"its children together 0.002 GPUs", []Queue{{Name: "a", GuaranteeMilli: 1}, {Name: "b", Parent: "a", GuaranteeMilli: 2}}},
	} {
		if _, err := NewQuotas(c.queues); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, want %q", c.queues, err, c.says)
		}
	}
}

func TestOrder(t *testing.T) {
	p := quotaPlanner(t, 2, Queue{Name: "a", GuaranteeMilli: 1000}, Queue{Name: "b", GuaranteeMilli: 1000})
	held(t, p.snap, "a0", "n1", 0, 500, 50, inQueue("a"))
	at := func(id, queue string, priority, minute int) quota.Turn {
		return quota.Turn{ID: id, Queue: queue, Priority: priority, Since: noon.Add(time.Duration(minute) * time.Minute)}
	}
	pending := []quota.Turn{at("late", "b", 50, 9), at("a", "a", 50, 1), at("early", "b", 50, 2), at("urgent", "a", 90, 10)}
	slices.SortFunc(pending, p.Order().Compare)
	var ids []string
	for _, r := range pending {
		ids = append(ids, r.ID)
	}
	if got := strings.Join(ids, " "); got != "urgent early late a" {
		t.Errorf("order %q", got)
	}
}

// manyNodes are more than are searched for victims in any case.
const manyNodes = 40

// More nodes than are searched in any case hold many small tasks; the last
// holds one large task, which is fewer.
func TestFewestVictimsOfAllNodes(t *testing.T) {
	var nodes []Node
	for i := range 2*manyNodes + 1 {
		nodes = append(nodes, testNode(fmt.Sprintf("n%03d", i), "A100", 1))
	}
	p := testPlanner(t, nodes...)
	for i := range 2 * manyNodes {
		for j := range 5 {
			held(t, p.snap, fmt.Sprintf("small-%d-%d", i, j), nodes[i].ID, 0, 200, 10, func(u *Usage) { u.Start = noon })
		}
	}
	held(t, p.snap, "large", nodes[2*manyNodes].ID, 0, 1000, 10)
	r := ask(t, "new", "1")
	r.Priority = 50
	if plan, err := p.Preempt([]Request{r}, noon); err != nil || victims(plan) != "large" {
		t.Errorf("victims %q, %v", victims(plan), err)
	}
}
