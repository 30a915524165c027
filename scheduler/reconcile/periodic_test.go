// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// periodic is a job of namespace a whose children Nomad starts by the clock.
func periodic(id, request string, count, priority int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "a", "Type": "batch", "Priority": %d, "Datacenters": ["*"],
		"Periodic": {"Enabled": true, "SpecType": "cron", "Spec": "* * * * * * *"},
		"TaskGroups": [{"Name": "g", "Count": %d, "Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": %q}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`,
		id, id, priority, count, request))
}

// clocks launches children of periodic jobs, each of which takes 20 s to stop, and counts how
// often their queue came above its bound.
type clocks struct {
	*modelRun
	launched, overruns int
	longer             int // seconds above
	most               int // slices that the queue held at once
	was                bool
}

func newClocks(t *testing.T) *clocks { return newClocksWith(t, modelConfig) }

func newClocksWith(t *testing.T, config string) *clocks {
	c := &clocks{modelRun: newRun(t, 3, 2, config)}
	c.stops = map[string]int{}
	return c
}

// launch is a start by the clock, which there is none of where the job prohibits that its children
// overlap.
func (c *clocks) launch(parent string) nomad.JobKey {
	if of := c.jobs["a/"+parent].job; *of.Periodic.ProhibitOverlap && c.childRuns(parent) {
		return nomad.JobKey{}
	}
	c.launched++
	id := fmt.Sprintf("%s/periodic-%05d", parent, c.launched)
	c.stops[id] = 20
	c.log = append(c.log, "  launch "+id)
	return c.modelRun.launch(nomad.JobKey{Namespace: "a", ID: parent}, id)
}

// childRuns reports whether Nomad would say that a child of a job runs, or waits.
func (c *clocks) childRuns(parent string) bool {
	for _, j := range c.jobs {
		if *j.job.ParentID == parent && (len(j.blocked) > 0 || c.holds(j) > 0) {
			return true
		}
	}
	return false
}

// force is one through the service, as its proxy does it; false: it is refused.
func (c *clocks) force(t *testing.T, parent string) bool {
	body, err := c.Read(t.Context(), nomad.JobKey{Namespace: "a", ID: parent})
	if err != nil {
		t.Fatal(err)
	}
	j, err := admit.Read(body, admit.Query{Namespace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range j.Asks {
		j.Asks[i].Later = false
	}
	d, err := c.decider.Decide(t.Context(), j.Asks, true)
	if err != nil || d[0].Hold != nil {
		return false
	}
	c.decider.Dispatched("a", c.launch(parent).ID, j.Asks)
	return true
}

func (c *clocks) tick(t *testing.T) {
	c.look()
	c.second(t.Context())
	c.look()
	if c.was {
		c.longer++
	}
}

func (c *clocks) look() {
	used := c.used("a")
	if c.most = max(c.most, used); used > 32 && !c.was {
		c.overruns++
		c.log = append(c.log, fmt.Sprintf("  queue a holds %d slices", used))
	}
	c.was = used > 32
}

// running are the children that run, and are not about to stop.
func (c *clocks) children() (list []*modelJob) {
	for _, a := range c.allocs {
		if j := c.jobs["a/"+a.stub.JobID]; j != nil && a.stopping == 0 && !slices.Contains(list, j) {
			list = append(list, j)
		}
	}
	return list
}

// told counts how often it was told that the children of job clock must wait.
func (c *clocks) told() (n int) {
	for _, line := range c.log {
		if strings.Contains(line, "hold: children of the periodic job a/clock must wait before they start: queue a holds") {
			n++
		}
	}
	return n
}

func (c *clocks) held(parent string) bool {
	return slices.ContainsFunc(constraintsOf(c.jobs["a/"+parent].job.TaskGroups[0]), func(text string) bool { return strings.Contains(text, admit.HoldMark) })
}

// A periodic job that its queue cannot pay for when it is submitted waits, and so do its
// children, each until there is quota for it: none of them takes the queue above its limit. So it
// stays until it is registered anew while there is quota.
func TestChildrenOfAPeriodicJobThatIsHeldWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), whole("a", 1))
		c.submit(t.Context(), whole("a", 2))
		c.tick(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		if !c.held("clock") {
			t.Fatalf("it is not held: %v", c.log)
		}
		for range 4 {
			c.launch("clock")
			c.tick(t)
		}
		if got := c.running(); got != "a/j1 a/j2" || c.overruns > 0 {
			t.Fatalf("%s run, %d overruns\n%s", got, c.overruns, strings.Join(c.log, "\n"))
		}
		c.stop(c.jobs["a/j1"])
		c.seconds(10)
		if n := len(c.children()); n != 2 || c.most > 32 || !c.held("clock") {
			t.Errorf("%d run, the queue held %d, the parent is held: %v\n%s", n, c.most, c.held("clock"), strings.Join(c.log, "\n"))
		}
		for range 5 { // one after the other
			for _, j := range c.children() {
				c.stop(j)
			}
			c.seconds(30)
		}
		if c.waiting() > 0 || c.most > 32 || c.overruns > 0 {
			t.Errorf("%d wait still, the queue held %d\n%s", c.waiting(), c.most, strings.Join(c.log, "\n"))
		}
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		if c.held("clock") {
			t.Error("registered anew while there is quota, it is held")
		}
	})
}

// A clock of every second, whose children take 20 s to stop, takes its queue above its limit once.
func TestAClockOfEverySecondOverrunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		if c.held("clock") {
			t.Fatalf("there is quota, and it is held: %v", c.log)
		}
		for range 120 {
			c.launch("clock")
			c.tick(t)
		}
		if c.overruns != 1 || c.most > 32+2*16 || !c.held("clock") {
			t.Errorf("%d overruns, at most %d slices, held: %v\n%s", c.overruns, c.most, c.held("clock"), strings.Join(c.log, "\n"))
		}
		if n := c.told(); n != 1 {
			t.Errorf("it is told of %d times: %v", n, c.log)
		}
		if got := constraintsOf(c.jobs["a/clock"].job.TaskGroups[0]); !slices.ContainsFunc(got, func(text string) bool {
			return strings.Contains(text, "took queue a above its limit; each child of a periodic job waits") && strings.Contains(text, "until the job is registered anew")
		}) {
			t.Errorf("nomad job status says %v", got)
		}
	})
}

// Whoever stops the children himself, so that none is too much once what stops has ended, gains
// nothing: they hold their GPUs until then.
func TestStoppingChildrenOverrunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		for range 60 {
			c.launch("clock")
			c.tick(t)
			for _, j := range c.children() {
				c.stop(j)
			}
			c.look()
		}
		if c.overruns > 1 || c.most > 32+2*16 || c.longer > 25 || !c.held("clock") {
			t.Errorf("%d overruns, at most %d slices, for %d s, held: %v\n%s", c.overruns, c.most, c.longer, c.held("clock"), strings.Join(c.log, "\n"))
		}
	})
}

// A dry run says once a minute what would be held.
func TestADryRunHoldsNoPeriodicJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocksWith(t, strings.Replace(modelConfig, "preemption {", "preemption {\n dry_run = true", 1))
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		for range 3 {
			c.launch("clock")
			c.tick(t)
		}
		c.seconds(90)
		if c.held("clock") || c.used("a") != 48 || c.told() != 2 {
			t.Errorf("held: %v, the queue holds %d, told %d times\n%s", c.held("clock"), c.used("a"), c.told(), strings.Join(c.log, "\n"))
		}
	})
}

// Where Nomad's news are late, what is held already is held and told of no second time, and keeps
// nothing else from being done.
func TestLateNewsOfAHoldAreNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), periodic("clock", "1", 1, 50))
		before := nomad.NewJob(c.jobs["a/clock"].job, nomad.Hardware{})
		for range 20 {
			c.launch("clock")
			c.tick(t)
			c.tell(nomad.Change{Job: before})
		}
		c.submit(t.Context(), whole("b", 1))
		c.seconds(30)
		if c.told() != 1 || !c.held("clock") || !strings.Contains(c.running(), "b/j1") {
			t.Errorf("told %d times, held: %v, %s run\n%s", c.told(), c.held("clock"), c.running(), strings.Join(c.log, "\n"))
		}
	})
}

// Forces come to no overrun at all: each is judged beside those before it.
func TestALoopOfForcesKeepsToItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.submit(t.Context(), periodic("never", "1", 1, 50))
		passed := 0
		for range 60 {
			for range 3 {
				if c.force(t, "never") {
					passed++
				}
			}
			c.tick(t)
		}
		if passed != 2 || c.overruns > 0 || c.held("never") {
			t.Errorf("%d passed, %d overruns, held: %v", passed, c.overruns, c.held("never"))
		}
	})
}

// TestPeriodicJobsOverrunOncePerRegistration drives periodic jobs of all sizes through starts by the
// clock, forces, registrations, children that end, other work in their queue, lost Variables and
// changes of leaders: a queue with borrow = false comes above its bound at most once for each time
// that one of them was registered free, and what waits in the end runs. NOMAD_GPU_HISTORIES says
// how many, or which.
func TestPeriodicJobsOverrunOncePerRegistration(t *testing.T) {
	overruns, free := 0, 0
	for _, seed := range histories(t, 4) {
		synctest.Test(t, func(t *testing.T) {
			c := newClocks(t)
			c.rng = rand.New(rand.NewPCG(seed, 13))
			registered := 0
			register := func(id string) {
				c.submit(t.Context(), periodic(id, []string{"1", "1", "0.5", "8G"}[c.rng.IntN(4)], 1+c.rng.IntN(2), 10+20*c.rng.IntN(4)))
				if c.jobs["a/"+id] != nil && !c.held(id) {
					registered++
				}
			}
			for i := range 3 {
				register(fmt.Sprintf("p%d", i))
			}
			for range 150 {
				id := fmt.Sprintf("p%d", c.rng.IntN(3))
				switch kind := c.rng.IntN(20); {
				case kind == 0:
					register(id)
				case kind == 1:
					c.lead(t.Context())
				case kind == 2:
					c.submit(t.Context(), whole("a", c.rng.IntN(3)))
				case kind < 6:
					c.force(t, id)
				case kind < 13:
					c.launch(id)
				default:
					if list := c.children(); len(list) > 0 {
						c.stop(list[c.rng.IntN(len(list))])
					}
				}
				c.tick(t)
			}
			if c.overruns > registered || c.longer > 25*registered {
				t.Errorf("seed %d: %d overruns of %d registrations, %d seconds long\n%s", seed, c.overruns, registered, c.longer, strings.Join(c.log, "\n"))
			}
			clear(c.stops)
			for n := 0; n < 600 && (n < 30 || c.waiting() > 0); n++ {
				for _, j := range c.children() {
					c.stop(j)
				}
				c.tick(t)
			}
			if c.waiting() > 0 || c.overruns > registered {
				t.Errorf("seed %d: %d wait, %d overruns of %d registrations\n%s", seed, c.waiting(), c.overruns, registered, strings.Join(c.log, "\n"))
			}
			overruns, free = overruns+c.overruns, free+registered
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d overruns of %d registrations", overruns, free)
}
