// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// shelf is a store that could not be opened when the service started, since its disk is full
// or its folder is away: it is opened as soon as it can be. The service decides without it.
type shelf struct {
	open func() (store, error)

	mu     sync.Mutex
	opened store // nil: not yet
	closed bool
}

func (s *shelf) get() (store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("open the ledger: the service ends")
	}
	if s.opened != nil {
		return s.opened, nil
	}
	opened, err := s.open()
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	s.opened = opened
	return opened, nil
}

// Append stores records.
func (s *shelf) Append(ctx context.Context, records []ledger.Record) error {
	opened, err := s.get()
	if err != nil {
		return err
	}
	return opened.Append(ctx, records)
}

// Recall returns the holdings that the ledger knows.
func (s *shelf) Recall(ctx context.Context) ([]ledger.Record, time.Time, error) {
	opened, err := s.get()
	if err != nil {
		return nil, time.Time{}, err
	}
	return opened.Recall(ctx)
}

// Ended lists what ended.
func (s *shelf) Ended(ctx context.Context, since time.Time) (map[ledger.Key]bool, error) {
	opened, err := s.get()
	if err != nil {
		return nil, err
	}
	return opened.Ended(ctx, since)
}

// Read hands over records.
func (s *shelf) Read(ctx context.Context, from, to time.Time, each func(*ledger.Record)) error {
	opened, err := s.get()
	if err != nil {
		return err
	}
	return opened.Read(ctx, from, to, each)
}

// Close closes the store, for good.
func (s *shelf) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.opened == nil {
		return nil
	}
	return s.opened.Close()
}
