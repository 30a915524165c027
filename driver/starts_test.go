// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/state"
	"github.com/hashicorp/nomad/nomad/mock"
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

// nomadState is the database of a Nomad client, which Nomad's own code writes.
type nomadState struct {
	state.StateDB
	path string
}

func newNomadState(t *testing.T) nomadState {
	t.Helper()
	dir := t.TempDir()
	db, err := state.NewBoltStateDB(hclog.NewNullLogger(), dir)
	must.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return nomadState{db, filepath.Join(dir, "state.db")}
}

// stop does what Nomad's client does about a task that is to end while it starts.
func (s nomadState) stop(cfg *drivers.TaskConfig) error {
	alloc := mock.Alloc()
	alloc.ID, alloc.DesiredStatus = cfg.AllocID, structs.AllocDesiredStatusStop
	return s.PutAllocation(alloc)
}

// endUnwanted does what the driver does every second.
func (e *env) endUnwanted(s nomadState) error {
	return endUnwanted(s.path, e.driver.starts.since(time.Now().Add(time.Hour)))
}

// TestAStartIsCanceledAtEachStep: by its job's end, and by the end of the client that
// asked for it. Nothing of it is left, and the task can be started again.
func TestAStartIsCanceledAtEachStep(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		nomad := newNomadState(t)
		for n, name := range namesOf(startSteps) {
			cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
			caller, gone := context.WithCancel(t.Context())
			ended, says := make(chan error, 1), "Nomad wants the allocation to stop"
			end := func() error { return errors.Join(nomad.stop(cfg), e.endUnwanted(nomad)) }
			if n%2 == 1 {
				says, end = errClientGone.Error(), func() error { gone(); return nil }
			}
			e.driver.at(name, n%3 == 0, func(ctx context.Context) {
				ended <- end()
				<-ctx.Done()
			})
			over := e.driver.starts.calledBy(caller, cfg.ID)
			_, _, err := e.driver.StartTask(cfg)
			over()
			gone()
			must.NoError(t, <-ended, must.Sprint(name))
			must.ErrorIs(t, err, errStartStopped, must.Sprint(name))
			must.ErrorContains(t, err, says, must.Sprint(name))
			must.Eq(t, nil, e.leftovers(), must.Sprint(name))
		}
		e.driver.steps = startSteps
		e.start(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0)))
	})
}

// TestAStartEndsBeforeTheNextOfItsTask: a client that was restarted asks for the start
// under another ID, maybe before the driver has seen that the one before is gone.
func TestAStartEndsBeforeTheNextOfItsTask(t *testing.T) {
	b := newStartBook()
	first := &drivers.TaskConfig{ID: "a/web/1", AllocID: "a", Name: "web"}
	ctx, done, err := b.begin(t.Context(), first)
	must.NoError(t, err)
	_, _, err = b.begin(t.Context(), first)
	must.ErrorContains(t, err, "is being started already")
	_, other, err := b.begin(t.Context(), &drivers.TaskConfig{ID: "a/side/1", AllocID: "a", Name: "side"})
	must.NoError(t, err)
	defer other()
	var ended atomic.Bool
	go func() {
		<-ctx.Done()
		ended.Store(true)
		done()
	}()
	_, done2, err := b.begin(t.Context(), &drivers.TaskConfig{ID: "a/web/2", AllocID: "a", Name: "web"})
	must.NoError(t, err)
	must.True(t, ended.Load())
	must.ErrorIs(t, context.Cause(ctx), errSuperseded)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = b.begin(over, &drivers.TaskConfig{ID: "a/web/3", AllocID: "a", Name: "web"})
	must.ErrorIs(t, err, context.Canceled)
	done2()
}

// TestAStallingRegistryHoldsNothing of the node: others start, on the GPU that a task would
// have which waits for its image, and what waits ends when its job is stopped.
func TestAStallingRegistryHoldsNothing(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		limited := e.with(func(c *config.Config) { c.MaxStarts = 4 })
		nomad := newNomadState(t)
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		waits := imageConfig(slowRegistry(t, r, &blobs, 0, make(chan struct{})) + "/box:1")
		ended := make(chan error, 6)
		var tasks []*drivers.TaskConfig
		for n := range cap(ended) {
			cfg := limited.quietTask(waits, reserve(gpuA, 0), func(cfg *drivers.TaskConfig) { cfg.JobID = fmt.Sprint("waits", n) })
			tasks = append(tasks, cfg)
			go func() {
				_, _, err := limited.driver.StartTask(cfg)
				ended <- err
			}()
		}
		eventually(t, "all of them wait for the registry", func() bool { return limited.driver.starts.pulls.Taken() == len(tasks) && blobs.Load() > 0 })
		limited.start(limited.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0)))
		for _, cfg := range tasks {
			must.NoError(t, nomad.stop(cfg))
		}
		must.NoError(t, limited.endUnwanted(nomad))
		for range tasks {
			must.ErrorIs(t, <-ended, errStartStopped)
		}
		must.Zero(t, limited.driver.starts.pulls.Taken())
		must.Zero(t, limited.driver.starts.room.Taken())
	})
}

// TestGettingAnImageEnds, whatever the job says about it.
func TestGettingAnImageEnds(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		limited := e.with(func(c *config.Config) { c.ImageTimeout = "300ms" })
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		config := imageConfig(slowRegistry(t, r, &blobs, 0, make(chan struct{})) + "/box:1")
		config.ImagePullTimeout = "10m"
		_, _, err := limited.driver.StartTask(limited.quietTask(config))
		must.ErrorContains(t, err, "took longer than image_timeout, 300ms")
		must.True(t, structs.IsRecoverable(err))
		must.Eq(t, nil, limited.leftovers())
	})
}
