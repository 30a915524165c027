// SPDX-License-Identifier: MPL-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// storm sends random requests to Nomad, through the service or around it, and remembers
// what was answered.
type storm struct {
	c       *cluster.Cluster
	mu      sync.Mutex
	answers map[string]int      // by route and outcome
	alive   map[jobKey]standing // as their owners left them; none: that is not known
}

// jobKey is a job as Nomad finds it.
type jobKey struct{ namespace, id string }

func (r jobKey) String() string { return r.namespace + "/" + r.id }

// standing is whether a job was registered or stopped last, and Nomad's index of that:
// several clients do so at once.
type standing struct {
	alive bool
	index uint64
}

func newStorm(c *cluster.Cluster) *storm {
	return &storm{c: c, answers: map[string]int{}, alive: map[jobKey]standing{}}
}

// seed is that of NOMAD_GPU_SEED.
func seed(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("NOMAD_GPU_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// recurring makes a job periodic or parameterized where its name says so. Its clock is
// never due: its children are forced.
func recurring(j *api.Job) {
	switch {
	case strings.HasPrefix(*j.ID, "periodic"):
		spec, enabled, kind, batch := "0 0 1 1 *", true, "cron", "batch"
		j.Type, j.Periodic, j.TaskGroups[0].Update = &batch, &api.PeriodicConfig{Spec: &spec, Enabled: &enabled, SpecType: &kind}, nil
	case strings.HasPrefix(*j.ID, "parameterized"):
		batch := "batch"
		j.Type, j.ParameterizedJob, j.TaskGroups[0].Update = &batch, &api.ParameterizedJobConfig{Payload: "optional"}, nil
	}
}

// send sends one request about a job; next is what is registered, where it is.
func (s *storm) send(ctx context.Context, rng *rand.Rand, to *api.Client, route string, about jobKey, next func() *api.Job) error {
	w, q := (&api.WriteOptions{Namespace: about.namespace}).WithContext(ctx), (&api.QueryOptions{Namespace: about.namespace}).WithContext(ctx)
	id := about.id
	var meta *api.WriteMeta
	var err error
	switch route {
	case "register":
		_, meta, err = to.Jobs().Register(next(), w)
		s.note(about, true, meta, err)
	case "plan":
		_, _, err = to.Jobs().Plan(next(), true, w)
	case "validate":
		_, _, err = to.Jobs().Validate(next(), w)
	case "scale":
		n := rng.IntN(5)
		_, _, err = to.Jobs().Scale(id, "g", &n, "", false, nil, w)
	case "dispatch":
		_, _, err = to.Jobs().Dispatch(id, nil, nil, "", w)
	case "force":
		_, _, err = to.Jobs().PeriodicForce(id, w)
	case "evaluate":
		_, _, err = to.Jobs().EvaluateWithOpts(id, api.EvalOptions{ForceReschedule: true}, w)
	case "revert":
		_, meta, err = to.Jobs().Revert(id, uint64(rng.IntN(4)), nil, w, "", "")
		s.note(about, true, meta, err)
	case "stable":
		_, _, err = to.Jobs().Stable(id, uint64(rng.IntN(3)), rng.IntN(2) == 0, w)
	case "promote", "fail":
		var d *api.Deployment
		if d, _, err = to.Jobs().LatestDeployment(id, q); err == nil && d != nil {
			if route == "promote" {
				_, _, err = to.Deployments().PromoteAll(d.ID, w)
			} else {
				_, _, err = to.Deployments().Fail(d.ID, w)
			}
		}
	case "stop alloc":
		var list []*api.AllocationListStub
		if list, _, err = to.Jobs().Allocations(id, false, q); err == nil && len(list) > 0 {
			_, err = to.Allocations().Stop(&api.Allocation{ID: list[0].ID}, q)
		}
	case "stop":
		_, meta, err = to.Jobs().Deregister(id, false, w)
		s.note(about, false, meta, err)
	}
	s.count(route, err)
	return err
}

// note remembers how a job stands. What was refused, or has no answer, may be either.
func (s *storm) note(about jobKey, alive bool, meta *api.WriteMeta, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && meta.LastIndex >= s.alive[about].index:
		s.alive[about] = standing{alive, meta.LastIndex}
	case err != nil && (status(err) == 0 || status(err) >= 500):
		delete(s.alive, about)
	}
}

func (s *storm) count(route string, err error) {
	outcome := "accepted"
	if err != nil {
		outcome = cmp.Or(strings.TrimPrefix(strconv.Itoa(status(err)), "0"), "no answer")
	}
	if err != nil && strings.Contains(err.Error(), "placement service") {
		outcome += ", no leader or no view"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[route+": "+outcome]++
}

// status is an error's HTTP status; 0: there was no answer.
func status(err error) int {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) {
		return unexpected.StatusCode()
	}
	return 0
}

// said lists what was answered, and how often.
func (s *storm) said(t *testing.T) {
	t.Helper()
	for _, line := range slices.Sorted(maps.Keys(s.answers)) {
		t.Logf("%4d %s", s.answers[line], line)
	}
}

// boundWatch looks for how long a namespace holds more slices than its queue may, while a
// replica decides.
type boundWatch struct {
	namespace string
	bound     int
	decides   atomic.Bool
	off       sync.Map // IDs of nodes that have no power: what ran there holds nothing

	held        atomic.Int64 // slices, when it was looked last
	above       atomic.Int64 // how often it went above its bound
	longest     atomic.Int64 // for how long, as a time.Duration
	looks, most int
}

// start begins to look, and returns what ends it.
func (w *boundWatch) start(ctx context.Context, c *cluster.Cluster) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		var since time.Time
		for ctx.Err() == nil {
			list, _, err := c.API.Allocations().List((&api.QueryOptions{Namespace: w.namespace, Params: map[string]string{"resources": "true"}}).WithContext(ctx))
			if err != nil {
				continue
			}
			held := 0
			for _, a := range list {
				if _, off := w.off.Load(a.NodeID); !off {
					held += slicesOf(a)
				}
			}
			if w.looks, w.most = w.looks+1, max(w.most, held); held > w.bound && int(w.held.Load()) <= w.bound {
				w.above.Add(1)
			}
			w.held.Store(int64(held))
			switch {
			case held <= w.bound || !w.decides.Load():
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			default:
				w.longest.Store(max(w.longest.Load(), int64(time.Since(since))))
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); group.Wait() }
}

// tell says how the queue kept to its bound.
func (w *boundWatch) tell(t *testing.T) {
	t.Helper()
	longest := time.Duration(w.longest.Load())
	t.Logf("in %d looks, the queue of namespace %s held at most %d slices of %d, and was above its bound %d times, for %s at most", w.looks, w.namespace, w.most, w.bound, w.above.Load(), longest.Round(100*time.Millisecond))
	if w.tooLong() {
		t.Errorf("the queue of namespace %s was above its bound for %s", w.namespace, longest)
	}
}

// tooLong reports whether the queue was above its bound for longer than it may be.
func (w *boundWatch) tooLong() bool { return time.Duration(w.longest.Load()) > aboveFor }

// slicesOf is how many device instances an alloc that has not ended holds.
func slicesOf(a *api.AllocationListStub) (held int) {
	if cluster.Terminal(a) || a.AllocatedResources == nil {
		return 0
	}
	for _, task := range a.AllocatedResources.Tasks {
		for _, d := range task.Devices {
			held += len(d.DeviceIDs)
		}
	}
	return held
}

// nothingIsLost wants every job that was accepted to be registered, and no group to have
// more allocs than it asks for, canaries apart.
func (s *storm) nothingIsLost(ctx context.Context, t *testing.T) {
	t.Helper()
	for about, last := range s.alive {
		j, _, err := s.c.API.Jobs().Info(about.id, (&api.QueryOptions{Namespace: about.namespace}).WithContext(ctx))
		if status(err) == http.StatusNotFound && !last.alive {
			continue // Nomad accepts that as well
		}
		if err != nil || *j.Stop == last.alive {
			t.Errorf("job %s: %v, want alive %v", about, err, last.alive)
			continue
		}
		if *j.Type != "service" && *j.Type != "batch" {
			continue
		}
		until(ctx, t, "have no alloc of job "+about.String()+" twice", 2*time.Minute, func() (bool, string) {
			n := 0
			for _, a := range allocs(ctx, t, s.c.API, about.namespace, about.id) {
				if a.DeploymentStatus == nil || !a.DeploymentStatus.Canary {
					n++
				}
			}
			return n <= *j.TaskGroups[0].Count, fmt.Sprintf("%d allocs of %d", n, *j.TaskGroups[0].Count)
		})
	}
}
