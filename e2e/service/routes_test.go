package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

const bounded = `
preemption {
  min_run_time   = "0s"
  max_per_minute = 600
}
queue "q" {
  gpus       = 2
  borrow     = false
  namespaces = ["team"]
}
`

// bound is what queue q may hold, in slices of T4.
const bound = 2 * 14

// aboveFor is for how long a queue may be above its bound: what Nomad starts by itself is
// seen, held and stopped. TestRandomHistories has 10 seconds on the model's clock; here
// the machine may be slow.
const aboveFor = 60 * time.Second

// deviceConstraints has every operator that Nomad knows, on what the device plugin
// publishes; some can be met and some cannot.
var deviceConstraints = []*api.Constraint{
	nil,
	{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "10 GiB"}, {LTarget: "${device.attr.memory}", Operand: ">", RTarget: "1000 MiB"},
	{LTarget: "${device.attr.memory}", Operand: "<", RTarget: "100 GiB"}, {LTarget: "${device.attr.memory}", Operand: "<=", RTarget: "1 GiB"},
	{LTarget: "${device.vendor}", Operand: "=", RTarget: "nvidia"}, {LTarget: "${device.vendor}", Operand: "!=", RTarget: "amd"},
	{LTarget: "${device.attr.driver_version}", Operand: "version", RTarget: ">= 1.0"}, {LTarget: "${device.attr.driver_version}", Operand: "semver", RTarget: ">= 1.0.0"},
	{LTarget: "${device.model}", Operand: "regexp", RTarget: "T4.*"}, {LTarget: "${device.attr.type}", Operand: "set_contains", RTarget: "T4"},
	{LTarget: "${device.attr.type}", Operand: "set_contains_all", RTarget: "T4"}, {LTarget: "${device.attr.type}", Operand: "set_contains_any", RTarget: "T4,H100"},
	{LTarget: "${device.attr.slices}", Operand: "is_set"}, {LTarget: "${device.attr.none}", Operand: "is_not_set"},
}

// storm sends random requests through the service.
type storm struct {
	c       *cluster.Cluster
	through atomic.Pointer[api.Client]
	mu      sync.Mutex
	answers map[string]int  // by route and outcome
	alive   map[string]bool // jobs whose last registration was accepted, and that were not stopped since
}

// one is a random job of the team, of any type.
func (s *storm) one(rng *rand.Rand, id string) *api.Job {
	kind := []string{"service", "service", "batch", "batch", "system", "sysbatch"}[rng.IntN(6)]
	one := job{id: id, namespace: "team", kind: kind, priority: 10 + 20*rng.IntN(5), count: 1 + rng.IntN(3)}
	switch asks := []string{"4G", "8G", "1", "0.5", "2G,0.25"}; rng.IntN(3) {
	case 0: // a device block of its author's, with a constraint
		n := uint64(1 + rng.IntN(14))
		one.devices = []*api.RequestedDevice{{Name: "nvidia/slice", Count: &n}}
		if c := deviceConstraints[rng.IntN(len(deviceConstraints))]; c != nil {
			one.devices[0].Constraints = []*api.Constraint{c}
		}
	default:
		one.meta = map[string]string{"gpu": asks[rng.IntN(len(asks))], "version": strconv.Itoa(rng.IntN(3))}
		if rng.IntN(5) == 0 && kind != "system" && kind != "sysbatch" {
			one.meta["gpu_gang"] = "true"
		}
	}
	if kind == "batch" && rng.IntN(2) == 0 {
		one.seconds = 1 + rng.IntN(20)
	}
	if kind == "service" && rng.IntN(2) == 0 {
		one.update = canaries(rng.IntN(3))
		one.update.AutoPromote, one.update.AutoRevert = new(bool), new(bool)
		*one.update.AutoRevert = rng.IntN(2) == 0
	}
	j := one.api()
	if kind == "system" || kind == "sysbatch" {
		*j.TaskGroups[0].Count = 1
	}
	switch {
	case strings.HasPrefix(id, "periodic"):
		spec, enabled, batch := "0 0 1 1 *", true, "batch"
		j.Type, j.Periodic, j.TaskGroups[0].Update = &batch, &api.PeriodicConfig{Spec: &spec, Enabled: &enabled, SpecType: new(string)}, nil
		*j.Periodic.SpecType = "cron"
	case strings.HasPrefix(id, "parameterized"):
		batch := "batch"
		j.Type, j.ParameterizedJob, j.TaskGroups[0].Update = &batch, &api.ParameterizedJobConfig{Payload: "optional"}, nil
	}
	return j
}

// act sends one request.
func (s *storm) act(ctx context.Context, rng *rand.Rand) {
	id := fmt.Sprintf("%s-%d", []string{"job", "job", "job", "periodic", "parameterized"}[rng.IntN(5)], rng.IntN(4))
	to, w, q := s.through.Load(), (&api.WriteOptions{Namespace: "team"}).WithContext(ctx), (&api.QueryOptions{Namespace: "team"}).WithContext(ctx)
	var err error
	route := []string{"register", "register", "register", "register", "plan", "validate", "scale", "scale", "dispatch", "dispatch", "force", "force", "evaluate", "revert", "revert", "stable", "promote", "promote", "fail", "stop alloc", "stop"}[rng.IntN(21)]
	switch route {
	case "register":
		_, _, err = to.Jobs().Register(s.one(rng, id), w)
		s.note(id, err, true)
	case "plan":
		_, _, err = to.Jobs().Plan(s.one(rng, id), true, w)
	case "validate":
		_, _, err = to.Jobs().Validate(s.one(rng, id), w)
	case "scale":
		n := rng.IntN(5)
		_, _, err = to.Jobs().Scale(id, "g", &n, "", false, nil, w)
	case "dispatch":
		_, _, err = to.Jobs().Dispatch(fmt.Sprintf("parameterized-%d", rng.IntN(4)), nil, nil, "", w)
	case "force":
		_, _, err = to.Jobs().PeriodicForce(fmt.Sprintf("periodic-%d", rng.IntN(4)), w)
	case "evaluate":
		_, _, err = to.Jobs().EvaluateWithOpts(id, api.EvalOptions{ForceReschedule: true}, w)
	case "revert":
		_, _, err = to.Jobs().Revert(id, uint64(rng.IntN(4)), nil, w, "", "")
		s.note(id, err, true)
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
		_, _, err = to.Jobs().Deregister(id, false, w)
		s.note(id, err, false)
	}
	s.count(route, err)
}

// note remembers how a job stands. What was refused, or has no answer, may be either.
func (s *storm) note(id string, err error, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.alive[id] = alive
	} else if status(err) == 0 || status(err) >= 500 {
		delete(s.alive, id)
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

// watch looks, until ctx ends, for how long the team holds more than its queue may, while
// a replica decides.
func watch(ctx context.Context, t *testing.T, c *cluster.Cluster, decides *atomic.Bool) (longest time.Duration, looks, most int) {
	t.Helper()
	var since time.Time
	for ctx.Err() == nil {
		list, _, err := c.API.Allocations().List(&api.QueryOptions{Namespace: "team", Params: map[string]string{"resources": "true"}})
		if err != nil {
			continue
		}
		held := 0
		for _, a := range list {
			if cluster.Terminal(a) || a.AllocatedResources == nil {
				continue
			}
			for _, task := range a.AllocatedResources.Tasks {
				for _, d := range task.Devices {
					held += len(d.DeviceIDs)
				}
			}
		}
		looks, most = looks+1, max(most, held)
		switch {
		case held <= bound || !decides.Load():
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		default:
			longest = max(longest, time.Since(since))
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return longest, looks, most
}

// TestEveryRouteKeepsTheBound sends random sequences of every type of job, with every
// operator in constraints on devices, through every route that starts or changes work, from
// several clients at once, and kills the replica that decides in the middle: a queue with
// borrow = false is not above its bound for longer than it takes to stop what is too much,
// nothing is lost, and nothing is placed twice.
func TestEveryRouteKeepsTheBound(t *testing.T) {
	if os.Getenv("NOMAD_GPU_LONG") == "" {
		t.Skip("takes five minutes: make test-routes")
	}
	ctx, c := start(t, 3)
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: "team"}, nil); err != nil {
		t.Fatal(err)
	}
	seed, _ := strconv.ParseUint(cmp.Or(os.Getenv("NOMAD_GPU_SEED"), "1"), 10, 64)
	s := &storm{c: c, answers: map[string]int{}, alive: map[string]bool{}}
	var decides atomic.Bool
	var replicas []*replica
	add := func() {
		r := serve(ctx, t, c, bounded)
		replicas = append(replicas, r)
		admits(ctx, t, r)
		s.through.Store(r.API)
	}
	add()
	add()
	decides.Store(true)
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	var longest time.Duration
	var looks, most int
	go func() { defer close(done); longest, looks, most = watch(watching, t, c, &decides) }()

	for round := range 3 {
		if round > 0 {
			decides.Store(false)
			replicas[0].kill(syscall.SIGKILL)
			replicas = replicas[1:]
		}
		var clients sync.WaitGroup
		for i := range uint64(3) {
			clients.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(round)*3+i))
				for range 80 {
					s.act(ctx, rng)
					time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
				}
			})
		}
		if round > 0 {
			add()
			decides.Store(true)
		}
		clients.Wait()
	}
	s.nothingIsLost(ctx, t)
	time.Sleep(aboveFor / 2) // what is above the bound now is not by accident
	stop()
	<-done
	for _, line := range slices.Sorted(maps.Keys(s.answers)) {
		t.Logf("%4d %s", s.answers[line], line)
	}
	t.Logf("seed %d: in %d looks, the queue held at most %d slices of %d, and was above its bound for %s at most", seed, looks, most, bound, longest.Round(100*time.Millisecond))
	if longest > aboveFor {
		t.Errorf("the queue was above its bound for %s", longest)
	}
	doubleBooked(ctx, t, c.API)
}

// nothingIsLost wants every job that was accepted to be registered, and no group to have
// more allocs than it asks for, canaries apart.
func (s *storm) nothingIsLost(ctx context.Context, t *testing.T) {
	t.Helper()
	q := (&api.QueryOptions{Namespace: "team"}).WithContext(ctx)
	for id, alive := range s.alive {
		j, _, err := s.c.API.Jobs().Info(id, q)
		if err != nil || *j.Stop == alive {
			t.Errorf("job %s: %v, want alive %v", id, err, alive)
			continue
		}
		if *j.Type != "service" && *j.Type != "batch" {
			continue
		}
		until(ctx, t, "have no alloc of job "+id+" twice", 2*time.Minute, func() (bool, string) {
			n := 0
			for _, a := range allocs(ctx, t, s.c.API, "team", id) {
				if a.DeploymentStatus == nil || !a.DeploymentStatus.Canary {
					n++
				}
			}
			return n <= *j.TaskGroups[0].Count, fmt.Sprintf("%d allocs of %d", n, *j.TaskGroups[0].Count)
		})
	}
}
