package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Of equal priority and number, the victims are of the queue whose turn is last: that
// which holds, or held over time, the most of its guarantee. Only then the work counts
// that is lost.
func TestVictimsAreOfTheQueueThatIsLast(t *testing.T) {
	queues := []Queue{{Name: "owner", GuaranteeMilli: 1000}, {Name: "greedy", GuaranteeMilli: 1000}, {Name: "modest", GuaranteeMilli: 1000}}
	since := func(minutes int) func(*Usage) {
		return func(u *Usage) { u.Start = noon.Add(-time.Duration(minutes) * time.Minute) }
	}
	t.Run("by what they hold", func(t *testing.T) {
		for _, nodes := range []int{1, 2} { // the greedy queue's work on the same node, or on another
			var specs []Node
			for i := range nodes {
				specs = append(specs, testNode(fmt.Sprint("n", i+1), "A100", 6/nodes))
			}
			p := testPlanner(t, specs...)
			q, err := NewQuotas(queues)
			if err != nil {
				t.Fatal(err)
			}
			p.SetQuotas(q, nil)
			at := func(i int) (string, int) { return fmt.Sprint("n", i*nodes/6+1), i % (6 / nodes) }
			for i := range 6 {
				node, gpu := at(i)
				if i < 4 {
					held(t, p.snap, fmt.Sprint("greedy", i), node, gpu, 1000, 50, inQueue("greedy"), since(100+i))
				} else {
					held(t, p.snap, fmt.Sprint("modest", i), node, gpu, 1000, 50, inQueue("modest"), since(10+i))
				}
			}
			r := ask(t, "new", "1")
			r.Queue, r.Priority = "owner", 50
			if plan, err := p.Preempt([]Request{r}, noon); err != nil || len(plan.Victims) != 1 || plan.Victims[0].Queue != "greedy" {
				t.Errorf("%d nodes: victims %q, %v", nodes, victims(plan), err)
			}
		}
	})
	t.Run("by what they held", func(t *testing.T) {
		p := quotaPlanner(t, 4, queues...)
		past := quota.NewPast(time.Hour)
		p.SetQuotas(p.quotas, past)
		past.Account(p.quotas, p.snap, noon.Add(-2*time.Hour))
		held(t, p.snap, "greedy0", "n1", 0, 1000, 50, inQueue("greedy"), since(120))
		held(t, p.snap, "greedy1", "n1", 1, 1000, 50, inQueue("greedy"), since(120))
		past.Account(p.quotas, p.snap, noon.Add(-time.Minute))
		held(t, p.snap, "modest0", "n1", 2, 1000, 50, inQueue("modest"), since(1))
		held(t, p.snap, "modest1", "n1", 3, 1000, 50, inQueue("modest"), since(1))
		r := ask(t, "new", "1")
		r.Queue, r.Priority = "owner", 50
		if plan, err := p.Preempt([]Request{r}, noon); err != nil || len(plan.Victims) != 1 || plan.Victims[0].Queue != "greedy" {
			t.Errorf("victims %q, %v", victims(plan), err)
		}
	})
}
