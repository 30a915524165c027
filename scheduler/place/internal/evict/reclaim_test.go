// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Of equal priority and number, the victims are of the queue whose turn is last: that
// which holds, or held over time, the most of its guarantee. Only then the work counts
// that is lost.
func TestVictimsAreOfTheQueueThatIsLast(t *testing.T) {
	queues := []quota.Queue{{Name: "owner", GuaranteeMilli: 1000}, {Name: "greedy", GuaranteeMilli: 1000}, {Name: "modest", GuaranteeMilli: 1000}}
	check := func(t *testing.T, c *scene) {
		t.Helper()
		found := c.eviction(c.ask("1", "owner", 50), noon).Best()
		if found == nil || len(found.Victims) != 1 || found.Victims[0].Queue != "greedy" {
			t.Errorf("victims %+v", found)
		}
	}
	for _, nodes := range []int{1, 2} { // the greedy queue's work on the same node, or on another
		t.Run(fmt.Sprint("by what they hold on nodes=", nodes), func(t *testing.T) {
			var specs []cluster.Node
			for i := range nodes {
				specs = append(specs, placetest.Node(fmt.Sprint("n", i+1), "A100", 6/nodes))
			}
			c := newScene(t, specs...)
			c.keep(queues...)
			for i := range 6 {
				queue, start := "greedy", 100+i
				if i >= 4 {
					queue, start = "modest", 10+i
				}
				c.hold(fmt.Sprint(queue, i), fmt.Sprint("n", i*nodes/6+1), i%(6/nodes), 1000, 50, inQueue(queue), since(start))
			}
			check(t, c)
		})
	}
	t.Run("by what they held", func(t *testing.T) {
		c := newScene(t, placetest.Node("n1", "A100", 4))
		c.keep(queues...)
		c.past = quota.NewPast(time.Hour)
		c.past.Account(c.quotas, c.snap, noon.Add(-2*time.Hour))
		c.hold("greedy0", "n1", 0, 1000, 50, inQueue("greedy"), since(120))
		c.hold("greedy1", "n1", 1, 1000, 50, inQueue("greedy"), since(120))
		c.past.Account(c.quotas, c.snap, noon.Add(-time.Minute))
		c.hold("modest0", "n1", 2, 1000, 50, inQueue("modest"), since(1))
		c.hold("modest1", "n1", 3, 1000, 50, inQueue("modest"), since(1))
		check(t, c)
	})
}
