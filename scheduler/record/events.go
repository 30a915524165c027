// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// events is the path of the events of each job. No decision depends on it: it tells for which job
// another one was stopped, held or moved, no matter how much was done since and which replica leads.
const events = "nomad-gpu/events/"

// keptEvents is how many events of a job are kept, if one Variable holds as many.
const keptEvents = 50

// jobEvents is the events of one job, newest first.
type jobEvents struct {
	Version int          `json:"v"`
	Events  []view.Event `json:"events"`
}

// eventsVersion is the version that this release writes. It reads all versions up to it.
const eventsVersion = 1

func eventsPath(key nomad.JobKey) string { return events + hashOf(key) }

// Events returns the events of a job, newest first.
func Events(ctx context.Context, s Store, key nomad.JobKey) ([]view.Event, error) {
	have, _, err := eventsAt(ctx, s, eventsPath(key))
	if err != nil {
		return nil, fmt.Errorf("read what was done to job %q: %w", key, err)
	}
	for i := range have {
		have[i].JobID = key.ID // which may be stored cut
	}
	return have, nil
}

func eventsAt(ctx context.Context, s Store, path string) ([]view.Event, stored, error) {
	text, lies, err := readText(ctx, s, path)
	if err != nil || text == "" {
		return nil, lies, err
	}
	var e jobEvents
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return nil, lies, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if e.Version < 1 || e.Version > eventsVersion {
		return nil, lies, fmt.Errorf("%w: version %d, this release reads 1 to %d", errUnreadable, e.Version, eventsVersion)
	}
	return e.Events, lies, nil
}

// errUnreadable is wrapped for a Variable that this release cannot read: it is damaged, or of a later
// release.
var errUnreadable = errors.New("it is not as this release writes it")

// AddEvents stores more events of a job, oldest first, with long names and texts cut. An event that is
// stored already is not stored twice. Stored events that this release cannot read are reported to
// trouble and replaced.
func AddEvents(ctx context.Context, s Store, key nomad.JobKey, more []view.Event, trouble func(error)) error {
	have, lies, err := eventsAt(ctx, s, eventsPath(key))
	if err != nil {
		if err = fmt.Errorf("read what was done to job %q: %w", key, err); !errors.Is(err, errUnreadable) {
			return err
		}
		trouble(err)
	}
	for _, e := range more {
		e = CutEvent(e)
		e.JobID = admit.CutName(e.JobID)
		if !slices.ContainsFunc(have, e.Same) {
			have = slices.Insert(have, 0, e)
		}
	}
	text, err := eventsText(have)
	if err == nil {
		_, err = writeText(ctx, s, eventsPath(key), key.String(), text, lies)
	}
	if err != nil {
		return fmt.Errorf("store what was done to job %q: %w", key, err)
	}
	return nil
}

// eventsText encodes the newest events, as many as one Variable holds.
func eventsText(list []view.Event) (string, error) {
	for n := min(len(list), keptEvents); ; n-- {
		text, err := json.Marshal(jobEvents{eventsVersion, list[:n]})
		if err != nil || len(text) <= partSize || n == 0 {
			return string(text), err
		}
	}
}

// ForgetEvents deletes the events of all jobs whose last event was before a time.
func ForgetEvents(ctx context.Context, s Store, before time.Time) error {
	paths, err := s.List(ctx, events)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	for path := range paths {
		group.Go(func() error {
			have, lies, err := eventsAt(groupCtx, s, path)
			switch {
			case errors.Is(err, errUnreadable): // a later release may know when it was
				return nil
			case err == nil && (len(have) == 0 || have[0].At.Before(before)):
				return removeText(groupCtx, s, path, lies)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("forget what was done to jobs long ago: %w", err)
	}
	return nil
}
