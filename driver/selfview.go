// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// selfView is what the node's state files say, read once a second at most for all tasks
// together: they may ask as often as they like.
type selfView struct {
	mu     sync.Mutex
	at     time.Time
	leases []gpu.Lease
	usage  gpu.Usage
	err    error
}

const selfViewAge = time.Second

// read returns the leases that are live, and the measurements.
func (v *selfView) read(state *statedir.Dir) ([]gpu.Lease, gpu.Usage, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) < selfViewAge {
		return v.leases, v.usage, v.err
	}
	leases, err := state.Leases()
	usage, problem := state.Usage()
	if errors.Is(problem, statedir.ErrNotFound) {
		problem = nil
	}
	v.leases = nil
	for _, l := range leases {
		if l.Live() {
			v.leases = append(v.leases, l)
		}
	}
	v.usage, v.err, v.at = usage, errors.Join(err, problem), time.Now()
	if v.err != nil {
		v.err = errors.New("the node's state files cannot be read") // more would tell of others
	}
	return v.leases, v.usage, v.err
}
