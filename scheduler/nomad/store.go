// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// ErrConflict is wrapped when a variable changed since it was read.
var ErrConflict = errors.New("changed by another client")

// Item is a Nomad Variable.
type Item struct {
	Path   string
	Values map[string]string
	// Index is the index to name in the next write; 0 for a new variable.
	Index uint64
}

// Store keeps what must survive in Nomad Variables. Every write names the
// index that it replaces, so that two replicas never overwrite each other.
type Store struct {
	vars      *api.Variables
	namespace string
}

// NewStore stores in one Nomad namespace.
func NewStore(c *api.Client, namespace string) *Store {
	return &Store{vars: c.Variables(), namespace: namespace}
}

// Get reads a variable; one that does not exist has Index 0.
func (s *Store) Get(ctx context.Context, path string) (Item, error) {
	q := (&api.QueryOptions{Namespace: s.namespace}).WithContext(ctx)
	v, _, err := s.vars.Peek(path, q)
	switch {
	case err != nil:
		return Item{}, fmt.Errorf("read variable %q: %w", path, err)
	case v == nil:
		return Item{Path: path}, nil
	}
	return Item{Path: path, Values: maps.Clone(v.Items), Index: v.ModifyIndex}, nil
}

// List returns the paths below a prefix, and the index of each.
func (s *Store) List(ctx context.Context, prefix string) (map[string]uint64, error) {
	q := (&api.QueryOptions{Namespace: s.namespace}).WithContext(ctx)
	list, _, err := s.vars.PrefixList(prefix, q)
	if err != nil {
		return nil, fmt.Errorf("list variables %q: %w", prefix, err)
	}
	found := make(map[string]uint64, len(list))
	for _, v := range list {
		if strings.HasPrefix(v.Path, prefix) {
			found[v.Path] = v.ModifyIndex
		}
	}
	return found, nil
}

// Put writes a variable if it is still at the item's index, and returns its
// new index.
func (s *Store) Put(ctx context.Context, item Item) (uint64, error) {
	q := (&api.WriteOptions{Namespace: s.namespace}).WithContext(ctx)
	v, _, err := s.vars.CheckedUpdate(&api.Variable{
		Namespace: s.namespace, Path: item.Path, Items: item.Values, ModifyIndex: item.Index,
	}, q)
	if err != nil {
		return 0, fmt.Errorf("write variable %q: %w", item.Path, conflict(err))
	}
	return v.ModifyIndex, nil
}

// Delete removes a variable if it is still at an index.
func (s *Store) Delete(ctx context.Context, path string, index uint64) error {
	q := (&api.WriteOptions{Namespace: s.namespace}).WithContext(ctx)
	if _, err := s.vars.CheckedDelete(path, index, q); err != nil {
		return fmt.Errorf("delete variable %q: %w", path, conflict(err))
	}
	return nil
}

func conflict(err error) error {
	var cas api.ErrCASConflict
	if errors.As(err, &cas) {
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return err
}
