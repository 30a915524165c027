package driver

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
)

// at makes a driver call do before or after one step of a start, with the context of
// that start.
func (d *Driver) at(name string, before bool, do func(context.Context)) {
	d.steps = slices.Clone(startSteps)
	i := slices.IndexFunc(d.steps, func(s step) bool { return s.name == name })
	step := d.steps[i].do
	d.steps[i].do = func(s *start, ctx context.Context) error {
		if before {
			do(ctx)
			return step(s, ctx)
		}
		err := step(s, ctx)
		do(ctx)
		return err
	}
}

// TestAStartIsCanceledAtEachStep: nothing of it is left, and the task can be started
// again.
func TestAStartIsCanceledAtEachStep(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for _, name := range namesOf(startSteps) {
			for _, before := range []bool{true, false} {
				for how, end := range map[string]func(id string) error{
					"stop":    func(id string) error { return e.driver.StopTask(id, time.Minute, "SIGTERM") },
					"destroy": func(id string) error { return e.driver.DestroyTask(id, true) },
				} {
					cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
					ended := make(chan error, 1)
					e.driver.at(name, before, func(ctx context.Context) {
						go func() { ended <- end(cfg.ID) }()
						<-ctx.Done()
					})
					_, _, err := e.driver.StartTask(cfg)
					must.NoError(t, <-ended, must.Sprint(how, name, before))
					must.ErrorIs(t, err, errStartStopped, must.Sprint(how, name, before))
					must.Eq(t, nil, e.leftovers(), must.Sprint(how, name, before))
				}
			}
		}
		e.driver.steps = startSteps
		e.start(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0)))
	})
}

// canceled reports whether a start that is under way has been canceled.
func (b *startBook) canceled(taskID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.flight[taskID]
	return f != nil && f.ctx.Err() != nil
}

// TestStartsAreBounded: of all, and of a job a quarter, so that no job keeps others
// from starting.
func TestStartsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStartBook()
		b.setLimit(8)
		admitted := map[string]int{}
		var releases []func()
		var mu sync.Mutex
		start := func(ctx context.Context, job string) {
			go func() {
				release, err := b.admit(ctx, &drivers.TaskConfig{JobID: job})
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				admitted[job]++
				releases = append(releases, release)
			}()
		}
		for range 5 {
			start(t.Context(), "hostile")
		}
		synctest.Wait()
		must.Eq(t, map[string]int{"hostile": 2}, admitted)
		ctx, cancel := context.WithCancel(t.Context())
		for _, job := range []string{"a", "b", "c", "d"} {
			start(ctx, job)
			start(ctx, job)
		}
		synctest.Wait()
		must.Len(t, 8, releases, must.Sprint("more starts are at work than may be"))
		cancel() // those that wait give up
		for _, release := range releases {
			release()
		}
		synctest.Wait()
		must.Eq(t, 4, admitted["hostile"])
		for _, release := range releases[8:] {
			release()
		}
		synctest.Wait()
		must.Eq(t, 5, admitted["hostile"])
	})
}

// A limit that is raised lets starts work that wait for room, without another's end.
func TestStartsThatWaitSeeAHigherLimit(t *testing.T) {
	for _, higher := range []int{2, 0} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b := newStartBook()
			b.setLimit(1)
			_, err := b.admit(ctx, &drivers.TaskConfig{JobID: "first"})
			must.NoError(t, err)
			var admitted atomic.Bool
			go func() {
				_, err := b.admit(ctx, &drivers.TaskConfig{JobID: "second"})
				admitted.Store(err == nil)
			}()
			synctest.Wait()
			must.False(t, admitted.Load())
			b.setLimit(higher)
			synctest.Wait()
			must.True(t, admitted.Load(), must.Sprintf("a limit of %d is not seen", higher))
		})
	}
}

// TestGettingAnImageEnds, whatever the job says about it.
func TestGettingAnImageEnds(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		limited := e.with(func(c *config.Config) { c.ImageTimeout = "300ms" })
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		config := imageConfig(slowRegistry(t, r, &blobs, 0, make(chan struct{})) + "/box:1")
		config.ImagePullTimeout = "1000h"
		_, _, err := limited.driver.StartTask(limited.quietTask(config))
		must.ErrorContains(t, err, "took longer than image_timeout, 300ms")
		must.True(t, structs.IsRecoverable(err))
		must.Eq(t, nil, limited.leftovers())
	})
}
