// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Queues in Nomad Variables hold, change and end within 15 seconds; one that is not valid
// changes nothing.
func TestQueuesInVariablesAreReadEvery15Seconds(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP) // what Go starts for the first signal is not to end with the test
	defer signal.Stop(signals)
	synctest.Test(t, func(t *testing.T) {
		c, store := config.Default(), nomadtest.NewStore()
		s := &service{logger: hclog.NewNullLogger(), file: c, store: store, state: state.New(c, time.Now)}
		s.config.Store(c)
		s.decider = leader.New(s.state, store, func() bool { return true })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.reloads(ctx)
		}()
		synctest.Wait()
		milli := func() int64 {
			if q := s.config.Load().Queue("vision"); q != nil {
				return q.QuotaMilli
			}
			return 0
		}
		const path = queuePrefix + "vision"
		was := int64(0)
		for i, row := range []struct {
			gpus string // empty: there is no such Variable
			want int64
		}{{"2.5", 2500}, {"3", 3000}, {"many", 3000}, {"4", 4000}, {"", 0}, {"1", 1000}} {
			item, err := store.Get(ctx, path)
			if err == nil && row.gpus == "" {
				err = store.Delete(ctx, path, item.Index)
			} else if err == nil {
				item.Values = map[string]string{"gpus": row.gpus, "namespaces": `["vision"]`}
				_, err = store.Put(ctx, item)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(variablesInterval - time.Second)
			synctest.Wait()
			if got := milli(); got != was {
				t.Errorf("change %d: a second too early, the queue has %d", i, got)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if was = row.want; milli() != was {
				t.Errorf("change %d: the queue has %d, want %d", i, milli(), was)
			}
		}
		cancel()
		<-ended
	})
}
