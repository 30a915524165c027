// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"sync"
	"time"
)

// savedEvery is how often at most an event says that a task's work is on disk: Nomad keeps
// ten events of a task, and the others are wanted too.
const savedEvery = 5 * time.Minute

// savedWork is when a task said last that its work is on disk, and when Nomad was told.
type savedWork struct {
	mu       sync.Mutex
	at, told time.Time
	later    *time.Timer
}

// note records that the task has saved its work, and calls tell with that time: at once or,
// if the last call was less than every ago, when that has passed, with the latest time by then.
func (w *savedWork) note(now time.Time, every time.Duration, tell func(at time.Time)) (message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = now
	wait := w.told.Add(every).Sub(now)
	if w.told.IsZero() || wait <= 0 {
		w.forget()
		w.told = now
		tell(now)
		return fmt.Sprintf("noted: the task's work is on disk as of %s", now.UTC().Format(time.RFC3339))
	}
	if w.later == nil {
		w.later = time.AfterFunc(wait, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.later != nil {
				w.later, w.told = nil, time.Now()
				tell(w.at)
			}
		})
	}
	return fmt.Sprintf("noted: the task's work is on disk as of %s; the placement service is told in %s, since it is told once every %s at most", now.UTC().Format(time.RFC3339), wait.Round(time.Second), every)
}

// stop forgets untold news.
func (w *savedWork) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
}

// forget forgets untold news. The caller holds mu.
func (w *savedWork) forget() {
	if w.later != nil {
		w.later.Stop()
		w.later = nil
	}
}
