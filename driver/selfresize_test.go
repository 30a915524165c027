// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// computing is a task on so many slices with a guarantee.
func (n *node) computing(milli int64, slices ...int) *drivers.TaskConfig {
	config := defaultTaskConfig("sleep", "1000")
	config.GPU.Compute = milli
	return n.e.quietTask(config, reserve(gpuA, slices...))
}

// What a task gives up of its compute is there for others at once, and it gets back only
// what is free. A new driver knows its share; a new start has that of its job.
func TestATaskResizesItsShare(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		said := listen(t, e)
		first := n.computing(700, 0, 1, 2, 3)
		e.start(first)
		lease := func() gpu.Lease {
			t.Helper()
			l, err := n.dir.Lease(gpu.LeaseID(first.AllocID, first.Name))
			must.NoError(t, err)
			return l
		}
		changed := func(at time.Time) { // the share can be changed every few seconds
			task, err := e.driver.tasks.get(first.ID)
			must.NoError(t, err)
			task.own.mu.Lock()
			task.own.last = at
			task.own.mu.Unlock()
		}
		second := n.computing(500, 4, 5)
		_, _, err := e.driver.StartTask(second)
		must.ErrorContains(t, err, "0.7 of it is promised")

		a := e.askSelf(first, "resize", "compute=0.2", "limit=0.9")
		must.StrContains(t, a.Message, "compute 0.2, at most 0.9; the guarantee holds from now on, and programs that run keep their limits: those that are started with these variables have the new ones: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=90")
		must.Eq(t, 200, a.Status.GPUs[0].Share.GuaranteeMilli)
		must.Eq(t, gpu.Share{MemoryMiB: 4096, GuaranteeMilli: 200, LimitMilli: 900}, lease().Holdings[0].Share)
		must.Eq(t, gpu.PhaseRunning, lease().Phase)
		eventually(t, "it is told", func() bool { return said.has(first.ID, "the task has changed its GPU share: GPU "+gpuA) })
		e.start(second)

		changed(time.Now().Add(time.Hour)) // however long the question takes
		_, problem, code := e.in(first, "nomad-gpu-self", "resize", "compute=0.3")
		must.Eq(t, 1, code)
		must.StrContains(t, problem, "it can be changed once every 5s")
		for args, want := range map[string]string{
			"compute=0.7":      "compute guarantee of 0.7 does not fit on GPU " + gpuA + ": 0.5 of it is promised to other tasks; ask for at most 0.5 (",
			"compute=0.8":      "compute: 0.8 is not valid on GPU " + gpuA + " (0.001 to 0.7",
			"limit=0.1":        "limit: 0.1 is not valid",
			"memory_limit=12G": "memory_limit: 12G cannot be held",
		} {
			changed(time.Time{})
			_, problem, code = e.in(first, "nomad-gpu-self", "resize", args)
			must.Eq(t, 1, code)
			must.StrContains(t, problem, want)
			must.StrNotContains(t, problem, second.AllocID)
		}
		for args, want := range map[string]string{"compute=50%": "compute: \"50%\" is not valid", "slices=3": "\"slices=3\" is not valid", "memory_limit=12GB": "decimal"} {
			_, problem, code = e.in(first, "nomad-gpu-self", "resize", args)
			must.Eq(t, 2, code)
			must.StrContains(t, problem, want)
		}
		before := lease()
		e.restart()
		for _, cfg := range []*drivers.TaskConfig{first, second} {
			must.NoError(t, e.driver.RecoverTask(handleOf(cfg)))
		}
		must.Eq(t, before, lease())
		a = e.askSelf(first, "resize", "compute=0.5")
		must.StrContains(t, a.Message, "compute 0.5, at most 0.9; it holds from now on")
		e.end(second)
		changed(time.Time{})
		e.askSelf(first, "resize", "compute=0.7")
		must.Eq(t, 700, lease().Holdings[0].GuaranteeMilli)
		e.end(first)
		must.Eq(t, gpu.PhaseEnded, lease().Phase)
		e.start(first)
		must.Eq(t, gpu.Share{MemoryMiB: 4096, GuaranteeMilli: 700, LimitMilli: 700}, lease().Holdings[0].Share)
	})
}

// Whoever asks at the same time: guarantees never add up to more than the GPU.
func TestTasksThatResizeAtOnce(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		var all []*task
		for i := range 4 {
			cfg := n.computing(250, i)
			e.start(cfg)
			running, err := e.driver.tasks.get(cfg.ID)
			must.NoError(t, err)
			// Each was started with more once, and the others have come since.
			one := &task{cfg: cfg, record: running.record}
			one.record.Lease.Holdings = slices.Clone(one.record.Lease.Holdings)
			one.record.Lease.Holdings[0].GuaranteeMilli = 900
			one.own.holdings.Store(&running.record.Lease.Holdings)
			all = append(all, one)
		}
		var asking sync.WaitGroup
		for round := range 8 {
			for i, one := range all {
				asking.Go(func() {
					milli := int64(50 + (round*271+i*137)%850)
					limit := int64(900)
					for range 3 {
						one.own.mu.Lock()
						one.own.last = time.Time{}
						one.own.mu.Unlock()
						_, _ = selfOf{e.driver, one}.resize(context.Background(), gpu.SelfResize{ComputeMilli: &milli, LimitMilli: &limit})
						leases, err := e.driver.leases.Started()
						sum := int64(0)
						for _, l := range leases {
							sum += l.Holdings[0].GuaranteeMilli
						}
						if err != nil || sum > gpu.MilliPerGPU {
							t.Errorf("%d milli are promised, %v", sum, err)
						}
					}
				})
			}
		}
		asking.Wait()
		for _, one := range all {
			l, err := n.dir.Lease(one.record.Lease.ID)
			must.NoError(t, err)
			must.Eq(t, l.Holdings, one.lease().Holdings, must.Sprint(fmt.Sprint("what the driver holds ", l.ID, " to")))
		}
	})
}
