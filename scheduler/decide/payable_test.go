// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// blocksWith is a job with a device block of its own.
func blocksWith(job string, count int64, constraints ...admit.Constraint) admit.Ask {
	a := servicetest.Ask(job, "1G", 1)
	a.Tasks = []admit.TaskAsk{{Task: "t", Driver: "docker", Devices: []admit.DeviceAsk{{Name: "nvidia/slice", Count: count, Constraints: constraints}}}}
	return a
}

// Regression: a device constraint that was not understood let a job slip past the
// quota of its queue, past its models, and past what no GPU can hold.
func TestDeviceConstraintsAreEvaluated(t *testing.T) {
	for name, row := range map[string]struct {
		constraint admit.Constraint
		fits       bool
	}{
		"memory with another unit": {admit.Constraint{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "16 GiB"}, true},
		"too much memory":          {admit.Constraint{LTarget: "${device.attr.memory}", Operand: ">", RTarget: "16 GiB"}, false},
		"a regular expression":     {admit.Constraint{LTarget: "${device.model}", Operand: "regexp", RTarget: "^T4/"}, true},
		"a set":                    {admit.Constraint{LTarget: "${device.attr.type}", Operand: "set_contains_any", RTarget: "A100,T4"}, true},
		"another model":            {admit.Constraint{LTarget: "${device.attr.type}", Operand: "!=", RTarget: "T4"}, false},
		"an instance":              {admit.Constraint{LTarget: "${device.ids}", Operand: "set_contains", RTarget: servicetest.Instance("a", 1, 3)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			first := blocksWith("first", 16, row.constraint)
			d, err := b.Decide(t.Context(), []admit.Ask{first}, false)
			var refusal *admit.Refusal
			if !row.fits {
				if !errors.As(err, &refusal) || refusal.Status != 422 || !strings.Contains(refusal.Error(), "no GPU meets the device block's constraint "+row.constraint.LTarget+" "+row.constraint.Operand+" "+row.constraint.RTarget+": it is ") {
					t.Errorf("got %+v, %v", d, err)
				}
				return
			}
			if err != nil || d[0].Hold != nil || len(d[0].Preferred) != 1 {
				t.Fatalf("got %+v, %v", d, err)
			}
			if d := b.Submit(t, blocksWith("second", 1, row.constraint)); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
				t.Errorf("the second is not held: %+v", d)
			}
		})
	}
}

// A guarantee of compute beside few slices costs the queue what it keeps from others, and from
// when it is decided: not only when Nomad shows the alloc.
func TestTheGuaranteeOfDeviceBlocksIsPaidFor(t *testing.T) {
	for compute, held := range map[int64]bool{0: false, 400: false, 600: true, 1000: true} {
		b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 4))
		for i, job := range []string{"first", "second"} {
			a := blocksWith(job, 1)
			a.Tasks[0].Driver, a.Tasks[0].ComputeMilli = "containerd", compute
			if d := b.Submit(t, a); (d.Hold != nil && d.Hold.Kind == view.WaitsForQuota) != (held && i > 0) {
				t.Errorf("%s with %d milli: %+v", job, compute, d.Hold)
			}
		}
	}
}

// The core evaluates what users ask of nodes with the operators of Nomad.
func TestNodeConstraints(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	for operand, right := range map[string]string{"regexp": "b", "set_contains": "b", ">": "a", "=": "b"} {
		a := servicetest.Ask("job", "4G", 1)
		a.Constraints = []admit.Constraint{{LTarget: "${node.unique.name}", Operand: operand, RTarget: right}}
		if d, err := b.Decide(t.Context(), []admit.Ask{a}, true); err != nil || !slices.Equal(d[0].Preferred, []string{"id-b"}) {
			t.Errorf("%s %s: %+v, %v", operand, right, d, err)
		}
	}
}

// A system job starts on every node, so its queue must pay for every node.
func TestASystemJobIsPaidForOnEveryNode(t *testing.T) {
	for gpus, fits := range map[string]bool{"gpus = 3\n": true, "gpus = 2.5\n": false} {
		b := servicetest.New(t, strings.Replace(servicetest.OneGPU, "gpus = 1\n", gpus, 1), servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 2))
		for _, kind := range []string{"system", "sysbatch"} {
			a := servicetest.Ask("everywhere", "1", 1)
			a.JobType = kind
			_, err := b.Decide(t.Context(), []admit.Ask{a}, true)
			var refusal *admit.Refusal
			if refused := errors.As(err, &refusal) && refusal.Status == 403 && strings.Contains(refusal.Text, "starts on 3 nodes: queue q"); refused == fits {
				t.Errorf("%s with %q: %v", kind, gpus, err)
			}
		}
	}
}

// Regression: what a queue may hold was judged by what a request costs on the GPU
// that it fits best when all are empty, so that jobs were refused for good which
// other GPUs hold for less.
func TestTheCheapestGPUDecidesWhatAQueueMayEverHold(t *testing.T) {
	large := servicetest.Machine("large", 1)
	for i := range large.Plan.GPUs { // one slice of it is a 64th
		g := &large.Plan.GPUs[i]
		g.Slices, g.MemoryMiB = 64, 64<<10
	}
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("small", 4), large)
	a := servicetest.Ask("many", "1G", 60)
	a.CPUMHz, a.MemoryMiB = 10, 10
	d, err := b.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil || d[0].Hold != nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	if !slices.Equal(d[0].Preferred, []string{"id-large"}) {
		t.Errorf("preferred %v", d[0].Preferred)
	}
}

// Regression: a reservation counted against the quota that its own claim needs, its
// Variable was deleted although nothing was claimed, and what waited for it failed
// to be revised for ever once it was over.
func TestAReservationPaysForItsClaim(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	one, _ := gpu.ParseRequest("1")
	hold, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: one, For: time.Minute}, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := b.Submit(t, servicetest.Ask("other", "1G", 1)); d.Hold == nil {
		t.Error("the reservation is not charged")
	}
	a := servicetest.Ask("claims", "1", 1)
	a.Reservation = hold.ID
	if d := b.Submit(t, a); d.Hold != nil || len(d.Preferred) != 1 {
		t.Fatalf("got %+v", d)
	}
	b.Register(a)
	for path := range b.Store.Items {
		if strings.HasPrefix(path, "nomad-gpu/reservations/") {
			t.Error("the claimed reservation is still stored")
		}
	}
	b.Pass(time.Hour)
	b.Expire()
	b.Block(a, 1)
	if d, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, b.Record(servicetest.KeyOf(a)).Groups["g"].Decision)}, decide.Revision{Group: "g", Retry: true}); err != nil {
		t.Errorf("it is not revised any more: %+v, %v", d, err)
	}
	late := servicetest.Ask("late", "1", 1)
	late.Reservation = hold.ID
	if _, err := b.Decide(t.Context(), []admit.Ask{late}, false); err == nil {
		t.Error("a reservation that is over was claimed")
	}
}

// What was admitted and waits for room is paid for before a system job is.
func TestASystemJobLeavesWhatWasAdmittedItsQuota(t *testing.T) {
	b := servicetest.New(t, strings.Replace(servicetest.OneGPU, "gpus = 1\n", "gpus = 3\n", 1), servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	waits := servicetest.Ask("waits", "1", 2)
	b.Submit(t, waits)
	b.Register(waits)
	b.Block(waits, 2)
	b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(waits), "g") })
	for request, refused := range map[string]bool{"0.5": false, "1": true} {
		a := servicetest.Ask("everywhere", request, 1)
		a.JobType = "system"
		_, err := b.Decide(t.Context(), []admit.Ask{a}, true)
		var refusal *admit.Refusal
		if refused != (errors.As(err, &refusal) && strings.Contains(refusal.Text, "admitted and waits for room")) {
			t.Errorf("%s: %v", request, err)
		}
	}
}
