// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
)

// Found are the devices that a backend's last survey has found, by UUID. Its methods
// may be called from many goroutines.
type Found[T any] struct {
	mu      sync.Mutex
	devices map[string]T
}

// Set keeps the finding of a survey, in place of the one before.
func (f *Found[T]) Set(devices map[string]T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = devices
}

// Lookup returns a device, and whether it was found.
func (f *Found[T]) Lookup(uuid string) (T, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	device, found := f.devices[uuid]
	return device, found
}

// First is the UUID of a device for which is holds; "" for none.
func (f *Found[T]) First(is func(T) bool) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uuid, device := range f.devices {
		if is(device) {
			return uuid
		}
	}
	return ""
}

// Ask asks something of a device, bounded in time together with all else that is
// asked of its owner: itself, or the GPU that it is a part of.
func Ask[T, V any](f *Found[T], g *guard.Guard, uuid string, owner func(T) string, ask func(T) V) (V, error) {
	device, found := f.Lookup(uuid)
	if !found {
		var none V
		return none, fmt.Errorf("device %s is not there", uuid)
	}
	value, err := guard.Call(g, owner(device), func() V { return ask(device) })
	if err != nil {
		return value, fmt.Errorf("ask device %s: %w", uuid, err)
	}
	return value, nil
}
