// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// eventListener listens to the driver's events.
type eventListener struct {
	log      hclog.Logger
	observer fleet.Observer
	// wake is called when listening was interrupted: something may have been
	// missed.
	wake   func()
	events chan hardware.Event

	uuids  []string
	cancel context.CancelFunc
	going  sync.WaitGroup
}

func newEventListener(log hclog.Logger, o fleet.Observer, wake func()) *eventListener {
	return &eventListener{log: log, observer: o, wake: wake, events: make(chan hardware.Event)}
}

// watch listens to the GPUs that are there, and starts over when they change.
func (l *eventListener) watch(ctx context.Context, machine hardware.Machine) {
	uuids := make([]string, 0, len(machine.GPUs))
	for _, g := range machine.GPUs {
		uuids = append(uuids, g.UUID)
	}
	slices.Sort(uuids)
	if slices.Equal(uuids, l.uuids) {
		return
	}
	if l.cancel != nil {
		l.cancel()
	}
	l.uuids, l.cancel = uuids, nil
	if len(uuids) == 0 {
		return
	}
	ctx, l.cancel = context.WithCancel(ctx)
	l.going.Go(func() { l.listen(ctx, uuids) })
}

// stop ends the listening and waits for it.
func (l *eventListener) stop() {
	if l.cancel != nil {
		l.cancel()
	}
	l.uuids, l.cancel = nil, nil
	l.going.Wait()
}

// listenPause is the pause after a failure to listen.
const listenPause = 2 * time.Second

// listen listens until the context ends, and begins again after a failure.
func (l *eventListener) listen(ctx context.Context, uuids []string) {
	emit := func(event hardware.Event) {
		select {
		case l.events <- event:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := l.observer.Watch(ctx, uuids, emit)
		if ctx.Err() != nil {
			return
		}
		l.log.Warn("listening to the driver's events ended, beginning again", "error", err)
		l.wake()
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
}
