package device

import (
	"context"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// watch is the goroutine that listens to the driver's events.
type watch struct {
	uuids  []string
	cancel context.CancelFunc
}

func (w *watch) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.uuids, w.cancel = nil, nil
}

// watchPause is how long a failed watch waits before the next attempt.
const watchPause = 2 * time.Second

// watch listens to the GPUs that are there, and starts anew when they change.
func (e *engine) watch(ctx context.Context, machine hardware.Machine) {
	uuids := make([]string, 0, len(machine.GPUs))
	for _, g := range machine.GPUs {
		uuids = append(uuids, g.UUID)
	}
	slices.Sort(uuids)
	if slices.Equal(uuids, e.watching.uuids) {
		return
	}
	e.watching.stop()
	e.watching.uuids = uuids
	if len(uuids) == 0 {
		return
	}
	ctx, e.watching.cancel = context.WithCancel(ctx)
	e.background.Add(1)
	go func() {
		defer e.background.Done()
		e.listen(ctx, uuids)
	}()
}

// listen watches until the context ends. A watch that fails is begun again.
func (e *engine) listen(ctx context.Context, uuids []string) {
	emit := func(event hardware.Event) {
		select {
		case e.events <- event:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := e.platform.observer.Watch(ctx, uuids, emit)
		if ctx.Err() != nil {
			return
		}
		e.log.Warn("listening to the driver's events ended, beginning again", "error", err)
		e.nudge()
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}
