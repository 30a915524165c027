// SPDX-License-Identifier: MPL-2.0

package nomadtest

import (
	"context"
	"errors"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// ErrFaulty is what a [Faulty] store says.
var ErrFaulty = errors.New("no answer from Nomad")

// Faulty is a store with one call that fails without an effect.
type Faulty struct {
	*Store
	FailAt int // the call, from 1; 0: none
	Calls  int
}

func (f *Faulty) fails() error {
	f.Calls++
	if f.Calls == f.FailAt {
		return ErrFaulty
	}
	return nil
}

// Get is that of a store.
func (f *Faulty) Get(ctx context.Context, path string) (nomad.Item, error) {
	if err := f.fails(); err != nil {
		return nomad.Item{}, err
	}
	return f.Store.Get(ctx, path)
}

// List is that of a store.
func (f *Faulty) List(ctx context.Context, prefix string) (map[string]uint64, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Store.List(ctx, prefix)
}

// Put is that of a store.
func (f *Faulty) Put(ctx context.Context, item nomad.Item) (uint64, error) {
	if err := f.fails(); err != nil {
		return 0, err
	}
	return f.Store.Put(ctx, item)
}

// Delete is that of a store.
func (f *Faulty) Delete(ctx context.Context, path string, index uint64) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Store.Delete(ctx, path, index)
}
