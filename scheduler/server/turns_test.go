// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestTurns(t *testing.T) {
	turns := newTurns()
	inside, most := 0, 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			done, err := turns.take(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			mu.Lock()
			inside--
			mu.Unlock()
			done()
		})
	}
	all.Wait()
	if most != 1 || len(turns.jobs) != 0 {
		t.Errorf("%d at once, %d jobs remembered", most, len(turns.jobs))
	}
}

func TestTurnsGiveUp(t *testing.T) {
	turns := newTurns()
	done, err := turns.take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := turns.take(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.take(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a turn: %v", err)
	}
	done()
	other()
	if len(turns.jobs) != 0 {
		t.Errorf("%d jobs remembered", len(turns.jobs))
	}
}
