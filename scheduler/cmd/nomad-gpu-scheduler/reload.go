// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

// variablesInterval is how often the queues in Nomad Variables are read.
const variablesInterval = 15 * time.Second

// reloads reads the configuration again on SIGHUP, and the queues of Nomad
// Variables every now and then.
func (s *service) reloads(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(variablesInterval)
	defer tick.Stop()
	s.refresh(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-hup:
			s.reopen()
			s.reload()
		}
		s.refresh(ctx)
	}
}

// reopen opens the audit log anew: whoever rotates it has renamed it.
func (s *service) reopen() {
	if s.audit == nil {
		return
	}
	if err := s.audit.Reopen(); err != nil {
		s.logger.Error("the audit log goes on in the file that it was in", "error", err)
	}
}

// reload takes what is new in the file. A file that is not valid changes
// nothing.
func (s *service) reload() {
	next, err := s.load()
	if err != nil {
		s.logger.Error("the configuration is not valid; the old one stays", "error", err)
		return
	}
	if keys := next.KeepFixed(s.file); len(keys) > 0 {
		s.logger.Warn("some of what changed needs a restart; until then it stays as it was", "keys", strings.Join(keys, ", "))
	}
	s.file = next
	s.logger.SetLevel(hclog.LevelFromString(next.LogLevel))
	s.logger.Info("the file was read again")
}

// refresh puts the file and the queues of Nomad Variables together. What cannot be used stays as
// it was, and holds up nothing else.
func (s *service) refresh(ctx context.Context) {
	queues, unread, err := s.variableQueues(ctx)
	if err != nil {
		queues, unread = s.queues, []error{fmt.Errorf("queues in Nomad Variables cannot be read and stay as they were: %w", err)}
	}
	c, taken, refused := s.file.Adopt(s.queues, queues)
	var trouble []string
	for _, err := range append(unread, refused...) {
		trouble = append(trouble, err.Error())
		s.logger.Warn("queues in Nomad Variables", "error", err)
	}
	s.trouble.Store(&trouble)
	s.queues = taken
	s.config.Store(c)
	s.decider.Configure(c)
}

const queuePrefix = "nomad-gpu/queues/"

// variableQueues reads the queues in Nomad Variables. One that makes no sense is as it was before.
func (s *service) variableQueues(ctx context.Context) (queues []config.Queue, unread []error, err error) {
	paths, err := s.store.List(ctx, queuePrefix)
	if err != nil {
		return nil, nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item, err := s.store.Get(ctx, path)
		if err != nil {
			return nil, nil, err
		}
		name := strings.TrimPrefix(path, queuePrefix)
		q, err := config.QueueFromItems(name, item.Values)
		if err != nil {
			unread = append(unread, fmt.Errorf("variable %s: the queue stays as it was: %w", path, err))
			at := slices.IndexFunc(s.queues, func(q config.Queue) bool { return q.Name == name })
			if at < 0 {
				continue
			}
			q = s.queues[at]
		}
		queues = append(queues, q)
	}
	return queues, unread, nil
}
