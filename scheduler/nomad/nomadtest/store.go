// SPDX-License-Identifier: MPL-2.0

// Package nomadtest stands for what Nomad keeps, in tests of those that keep it there.
package nomadtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Store keeps items as Nomad Variables do, compare-and-set and within their limit.
type Store struct {
	mu    sync.Mutex
	Items map[string]nomad.Item
	index uint64
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{Items: map[string]nomad.Item{}} }

// Get returns an item; one that does not exist has no index.
func (s *Store) Get(_ context.Context, path string) (nomad.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.Items[path]
	item.Path, item.Values = path, maps.Clone(item.Values)
	return item, nil
}

// List returns the indexes of what lies below a prefix.
func (s *Store) List(_ context.Context, prefix string) (map[string]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]uint64{}
	for path, item := range s.Items {
		if strings.HasPrefix(path, prefix) {
			found[path] = item.Index
		}
	}
	return found, nil
}

// Put stores an item if it is still as it was read.
func (s *Store) Put(_ context.Context, item nomad.Item) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Items[item.Path].Index != item.Index {
		return 0, fmt.Errorf("put: %w", nomad.ErrConflict)
	}
	size := 0
	for k, v := range item.Values {
		size += len(k) + len(v)
	}
	if size > 64<<10 { // as Nomad says it
		return 0, errors.New("variables are limited to 64KiB in total size")
	}
	s.index++
	item.Index = s.index
	s.Items[item.Path] = item
	return s.index, nil
}

// Delete removes an item if it is still as it was read.
func (s *Store) Delete(_ context.Context, path string, index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Items[path].Index != index {
		return fmt.Errorf("delete: %w", nomad.ErrConflict)
	}
	delete(s.Items, path)
	return nil
}
