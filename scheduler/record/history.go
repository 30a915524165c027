// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// historyPath is the path of the history, so that each eviction, its cause and
// its beneficiary are known after a change of leaders too.
const historyPath = "nomad-gpu/history"

// historyVersion is the version that this release writes; readers accept every
// version up to it.
const historyVersion = 1

// History is the service's actions on jobs.
type History struct {
	Version int          `json:"v"`
	Events  []view.Event `json:"events"`
	// Evicted is when a job (namespace/job) had to go within the last hour.
	Evicted map[string][]time.Time `json:"evicted"`
	// EvictedQueues is when jobs of a queue had to.
	EvictedQueues map[string][]time.Time `json:"evicted_queues,omitempty"`
	// EvictedOwn and EvictedQueuesOwn are those of them that were for jobs of the same queue.
	EvictedOwn       map[string][]time.Time `json:"evicted_own,omitempty"`
	EvictedQueuesOwn map[string][]time.Time `json:"evicted_queues_own,omitempty"`
	// Moved is when work of a job (namespace/job) was moved last, and Idle when it was evicted
	// last since it did not use its GPUs.
	Moved map[string]time.Time `json:"moved,omitempty"`
	Idle  map[string]time.Time `json:"idle,omitempty"`
	// Used is what queues held over time, as of UsedAt.
	Used   map[string]quota.Use `json:"used,omitempty"`
	UsedAt time.Time            `json:"used_at,omitzero"`
	// Arrived is what jobs asked for, and Turnover how many tasks ended per task that started,
	// as of LearnedAt.
	Arrived   []Arrived `json:"arrived,omitempty"`
	Turnover  *float64  `json:"turnover,omitempty"`
	LearnedAt time.Time `json:"learned_at,omitzero"`

	stored stored
}

// ReadHistory returns the actions of earlier leaders; a history that cannot be read is told to
// trouble, and begins empty.
func ReadHistory(ctx context.Context, s Store, trouble func(error)) (*History, error) {
	text, at, err := readText(ctx, s, historyPath)
	if err != nil {
		return nil, err
	}
	h := &History{}
	if text != "" {
		err := json.Unmarshal([]byte(text), h)
		if err == nil && h.Version > historyVersion {
			err = fmt.Errorf("it has version %d, this release reads 1 to %d", h.Version, historyVersion)
		}
		if err != nil {
			trouble(fmt.Errorf("read what was done: %w", err))
			h = &History{}
		}
	}
	h.stored = at
	return h, nil
}

// Write replaces the stored history by h, if it is still was.
func (h *History) Write(ctx context.Context, s Store, was *History) error {
	h.Version = historyVersion
	text, err := json.Marshal(h)
	if err == nil {
		h.stored, err = writeText(ctx, s, historyPath, "", string(text), was.stored)
	}
	if err != nil {
		return fmt.Errorf("store what was done: %w", err)
	}
	return nil
}
