package main

import (
	"context"
	"os"
	"os/signal"
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

// refresh puts the file and the queues of Nomad Variables together.
func (s *service) refresh(ctx context.Context) {
	queues, err := s.variableQueues(ctx)
	var c *config.Config
	if err == nil {
		c, err = s.file.WithQueues(queues)
	}
	if err != nil {
		s.logger.Warn("queues in Nomad Variables cannot be used; they stay as they were", "error", err)
		// What else the file says holds all the same.
		if c, err = s.file.WithQueues(s.queues); err != nil {
			s.logger.Error("the file does not go with the queues in Nomad Variables; the old configuration stays", "error", err)
			return
		}
	} else {
		s.queues = queues
	}
	s.config.Store(c)
	s.decider.Configure(c)
}

const queuePrefix = "nomad-gpu/queues/"

func (s *service) variableQueues(ctx context.Context) ([]config.Queue, error) {
	paths, err := s.store.List(ctx, queuePrefix)
	if err != nil {
		return nil, err
	}
	var queues []config.Queue
	for path := range paths {
		item, err := s.store.Get(ctx, path)
		if err != nil {
			return nil, err
		}
		q, err := config.QueueFromItems(strings.TrimPrefix(path, queuePrefix), item.Values)
		if err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, nil
}
