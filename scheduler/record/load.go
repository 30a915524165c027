// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"fmt"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"golang.org/x/sync/errgroup"
)

// parallelReads bounds how many variables are read at once.
const parallelReads = 16

// Load reads the records of all jobs. Keep takes each, from several goroutines, and
// returns false for one that is not needed any more, which is deleted. One bad
// record must not stop the service: it is told to trouble.
func Load(ctx context.Context, s Store, keep func(*Record) bool, trouble func(error)) error {
	paths, err := s.List(ctx, decisions)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	var mu sync.Mutex
	series := map[string]bool{} // of parts that a record names
	unread := false
	for path := range paths {
		if isPart(path) {
			continue
		}
		group.Go(func() error {
			r, err := readAt(groupCtx, s, path, nomad.JobKey{})
			if err != nil {
				trouble(err)
				mu.Lock()
				defer mu.Unlock()
				unread = true
				return groupCtx.Err()
			}
			if !keep(r) {
				return r.Remove(groupCtx, s)
			}
			mu.Lock()
			defer mu.Unlock()
			series[r.stored.series] = true
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load decisions: %w", err)
	}
	for path := range paths {
		if !unread && isPart(path) && !series[seriesOf(path)] {
			if err := removeItem(ctx, s, path); err != nil {
				return fmt.Errorf("delete a part that no decision names: %w", err)
			}
		}
	}
	return nil
}
