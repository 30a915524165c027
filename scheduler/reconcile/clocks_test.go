package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// free counts the periodic jobs that are not held.
func (c *clocks) free() (n int) {
	for _, j := range c.jobs {
		if j.job.IsPeriodic() && (j.job.Stop == nil || !*j.job.Stop) && !c.held(j.key.ID) {
			n++
		}
	}
	return n
}

// Many periodic jobs that are submitted while nothing runs, and start all at once, each second, take
// their queue to no more than what it may hold once for each second until they are held, also
// where next to nothing may be evicted.
func TestManyPeriodicJobsAtOnce(t *testing.T) {
	for _, perMinute := range []string{"600", "30", "1"} {
		t.Run(perMinute, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClocksWith(t, strings.Replace(modelConfig, "= 600", "= "+perMinute, 1))
				for i := range 20 {
					c.submit(t.Context(), periodic(fmt.Sprintf("p%d", i), "4G", 1, 50))
				}
				if n := c.free(); n != 8 {
					t.Errorf("%d are free", n)
				}
				for range 5 {
					for i := range 20 {
						c.launch(fmt.Sprintf("p%d", i))
					}
					c.tick(t)
				}
				if c.most > 3*32 || c.free() > 0 {
					t.Errorf("max_per_minute %s: the queue held %d slices of 32, %d are free", perMinute, c.most, c.free())
				}
			})
		})
	}
}

// A loop that ends what it started, purges the job and submits it anew gains nothing for an hour.
func TestALoopOfRegistrationsOverrunsOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		for i := range 20 {
			for _, key := range slices.Sorted(maps.Keys(c.jobs)) {
				c.stop(c.jobs[key])
			}
			c.seconds(25)
			id := fmt.Sprintf("p%d", i)
			c.submit(t.Context(), periodic(id, "1", 1, 50))
			for range 5 {
				c.launch(id)
				c.tick(t)
			}
			if i == 10 {
				c.lead(t.Context())
			}
		}
		if c.overruns > 1 {
			t.Errorf("%d overruns, for %d seconds\n%s", c.overruns, c.longer, strings.Join(c.log, "\n"))
		}
	})
}
