// SPDX-License-Identifier: MPL-2.0

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

// Where many children of a job that is held wait, Nomad starts no further one until they have run:
// neither Nomad nor the service has to remember ever more of them. It is told once, and none that
// waits is lost.
func TestOnlySoManyChildrenOfAJobWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), whole("a", 1))
		c.submit(t.Context(), whole("a", 2))
		c.tick(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		for range mostChildren + 30 {
			c.launch("clock")
			c.tick(t)
		}
		told := 0
		for _, line := range c.log {
			if strings.Contains(line, "100 children of the periodic job a/clock wait: Nomad starts no further one until they have run (prohibit_overlap)") {
				told++
			}
		}
		if n := c.waiting(); n < mostChildren || n > mostChildren+2 || told != 1 || !c.held("clock") {
			t.Errorf("%d wait, told %d times\n%s", n, told, strings.Join(c.log, "\n"))
		}
		c.stop(c.jobs["a/j1"])
		clear(c.stops)
		ran := map[string]bool{}
		for n := 0; n < 1000 && c.waiting() > 0; n++ {
			c.tick(t)
			for _, j := range c.children() {
				ran[j.key.ID] = true
				c.stop(j)
			}
		}
		c.seconds(10)
		if len(ran) != c.launched+1 || c.overruns > 0 { // and the one that was submitted
			t.Errorf("%d of %d ran, %d wait", len(ran), c.launched+1, c.waiting())
		}
		c.launch("clock")
		c.seconds(10)
		if len(c.children()) != 1 {
			t.Errorf("%s run", c.running())
		}
	})
}

// A dry run only tells of it.
func TestADryRunProhibitsNoOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocksWith(t, strings.Replace(modelConfig, "preemption {", "preemption {\n dry_run = true", 1))
		c.submit(t.Context(), whole("a", 1))
		c.submit(t.Context(), whole("a", 2))
		c.tick(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		for range mostChildren + 10 {
			c.launch("clock")
			c.tick(t)
		}
		if n := c.waiting(); n != mostChildren+10 || !strings.Contains(strings.Join(c.log, "\n"), "hold: 100 children of") {
			t.Errorf("%d wait\n%s", n, strings.Join(c.log, "\n"))
		}
	})
}

// A job that prohibits overlap has one child at a time: Nomad does not know of the one that was let go,
// since it forgets whose child that is, so that the next one waits until it has ended. What else waits
// for the queue goes on.
func TestOverlapStaysProhibited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), whole("a", 1))
		c.submit(t.Context(), whole("a", 2))
		c.tick(t)
		c.submit(t.Context(), []byte(strings.Replace(string(periodic("clock", "1", 1, 50)), `"Enabled"`, `"ProhibitOverlap": true, "Enabled"`, 1)))
		for range 5 {
			c.launch("clock")
			c.tick(t)
		}
		c.stop(c.jobs["a/j1"])
		c.stop(c.jobs["a/j2"])
		for range 30 {
			c.launch("clock")
			c.tick(t)
			if n := len(c.children()); n > 1 {
				t.Fatalf("%s run\n%s", c.running(), strings.Join(c.log, "\n"))
			}
		}
		if c.waiting() != 1 || len(c.children()) != 1 {
			t.Errorf("%d wait, %s run", c.waiting(), c.running())
		}
		c.submit(t.Context(), whole("a", 3))
		c.seconds(10)
		if !strings.Contains(c.running(), "a/j3") {
			t.Errorf("%s run\n%s", c.running(), strings.Join(c.log, "\n"))
		}
		c.stop(c.jobs["a/j3"])
		for _, j := range c.children() {
			c.stop(j)
		}
		c.seconds(60)
		if c.waiting() != 0 || len(c.children()) != 1 {
			t.Errorf("%d wait, %s run\n%s", c.waiting(), c.running(), strings.Join(c.log, "\n"))
		}
	})
}
