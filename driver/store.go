package driver

import (
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// taskStore holds the tasks that this process watches, by task ID. It is a view
// of what containerd holds, filled by StartTask and RecoverTask.
type taskStore struct {
	mu    sync.RWMutex
	tasks map[string]*task
}

func (s *taskStore) put(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks == nil {
		s.tasks = map[string]*task{}
	}
	s.tasks[t.cfg.ID] = t
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
