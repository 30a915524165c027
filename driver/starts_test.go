package driver

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
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
