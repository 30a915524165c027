// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// taskStore holds the tasks that this process watches, by task ID. It is a view
// of what containerd holds, filled by StartTask and RecoverTask.
type taskStore struct {
	mu    sync.RWMutex
	tasks map[string]*task
	// added is closed, and replaced, when a task comes.
	added chan struct{}
}

func newTaskStore() *taskStore {
	return &taskStore{tasks: map[string]*task{}, added: make(chan struct{})}
}

func (s *taskStore) put(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.cfg.ID] = t
	close(s.added)
	s.added = make(chan struct{})
}

// get returns drivers.ErrTaskNotFound for a task that is not watched.
func (s *taskStore) get(id string) (*task, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t, ok := s.tasks[id]; ok {
		return t, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// running waits until a task of an allocation runs, or ctx ends.
func (s *taskStore) running(ctx context.Context, allocID, name string) (*task, error) {
	for {
		t, added := s.find(allocID, name)
		if t != nil {
			return t, nil
		}
		select {
		case <-added:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// find returns a task that runs, or nil and a channel that is closed when another comes.
func (s *taskStore) find(allocID, name string) (*task, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.tasks {
		if t.cfg.AllocID == allocID && t.cfg.Name == name && !t.exited() {
			return t, nil
		}
	}
	return nil, s.added
}

// changed returns a channel that is closed when the next task comes.
func (s *taskStore) changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.added
}

func (s *taskStore) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
}

// all returns every watched task.
func (s *taskStore) all() []*task {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*task, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t)
	}
	return all
}
