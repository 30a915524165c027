// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
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

// anyJob is a random job of the team, of any type.
func anyJob(rng *rand.Rand, id string) *api.Job {
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
	recurring(j)
	return j
}

// act sends one request through the service.
func act(ctx context.Context, rng *rand.Rand, s *storm, to *api.Client) {
	id := fmt.Sprintf("%s-%d", []string{"job", "job", "job", "periodic", "parameterized"}[rng.IntN(5)], rng.IntN(4))
	route := []string{"register", "register", "register", "register", "plan", "validate", "scale", "scale", "dispatch", "dispatch", "force", "force", "evaluate", "revert", "revert", "stable", "promote", "promote", "fail", "stop alloc", "stop"}[rng.IntN(21)]
	switch route {
	case "dispatch":
		id = fmt.Sprintf("parameterized-%d", rng.IntN(4))
	case "force":
		id = fmt.Sprintf("periodic-%d", rng.IntN(4))
	}
	_ = s.send(ctx, rng, to, route, jobKey{"team", id}, func() *api.Job { return anyJob(rng, id) }) // it is counted
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
	seed, s := seed(t), newStorm(c)
	w := &boundWatch{namespace: "team", bound: bound}
	var through atomic.Pointer[api.Client]
	var replicas []*replica
	add := func() {
		r := serve(ctx, t, c, bounded)
		replicas = append(replicas, r)
		admits(ctx, t, r)
		through.Store(r.API)
	}
	add()
	add()
	w.decides.Store(true)
	stop := w.start(ctx, c)

	for round := range 3 {
		if round > 0 {
			w.decides.Store(false)
			replicas[0].kill(syscall.SIGKILL)
			replicas = replicas[1:]
		}
		var clients sync.WaitGroup
		for i := range uint64(3) {
			clients.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(round)*3+i))
				for range 80 {
					act(ctx, rng, s, through.Load())
					time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
				}
			})
		}
		if round > 0 {
			add()
			w.decides.Store(true)
		}
		clients.Wait()
	}
	s.nothingIsLost(ctx, t)
	time.Sleep(aboveFor / 2) // what is above the bound now is not by accident
	stop()
	s.said(t)
	t.Logf("seed %d", seed)
	w.tell(t)
	doubleBooked(ctx, t, c.API)
}
