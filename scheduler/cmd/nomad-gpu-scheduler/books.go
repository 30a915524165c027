// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/keeper"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger/files"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger/postgres"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// store keeps the ledger, in a folder or a database.
type store interface {
	keeper.Store
	// Read hands over the records that say something of a time.
	Read(ctx context.Context, from, to time.Time, each func(*ledger.Record)) error
	Close() error
}

// books are the ledger, its store and who writes it.
type books struct {
	store   store
	keeper  *keeper.Keeper
	config  func() *config.Config
	tallies *tallies
	dropped int                               // as it was reported last
	outage  atomic.Pointer[view.LedgerOutage] // nil: the store takes all
}

// tallies are the ledger's metrics.
type tallies struct {
	gpuSeconds, byteSeconds *prometheus.CounterVec
	unstored, writable      prometheus.Gauge
	dropped                 prometheus.Counter
}

func (t *tallies) all() []prometheus.Collector {
	return []prometheus.Collector{t.gpuSeconds, t.byteSeconds, t.unstored, t.writable, t.dropped}
}

func newTallies() *tallies {
	labels := []string{"queue", "type"}
	return &tallies{
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nomad_gpu_ledger_gpu_seconds_total", Help: "GPUs that a queue's jobs held, as quotas count them, times seconds."}, labels),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nomad_gpu_ledger_memory_byte_seconds_total", Help: "GPU memory that a queue's jobs held, times seconds."}, labels),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "nomad_gpu_ledger_unstored_records", Help: "Records that the ledger's store has not taken yet."}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "nomad_gpu_ledger_writable", Help: "1 when the ledger's store takes records, 0 when it is full, away or not open yet."}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "nomad_gpu_ledger_dropped_records_total", Help: "Records that were given up because the ledger's store took nothing for too long."}),
	}
}

func (t *tallies) add(h *ledger.Hold, d time.Duration) {
	kind := strings.TrimSpace(h.Type + " " + h.Profile)
	t.gpuSeconds.WithLabelValues(h.Queue, kind).Add(float64(h.Milli) / 1000 * d.Seconds())
	t.byteSeconds.WithLabelValues(h.Queue, kind).Add(float64(h.MemoryMiB<<20) * d.Seconds())
}

// openBooks opens the ledger; nil where none is to be kept. Where it cannot be opened now,
// the service starts without it; a wrong configuration is an error.
func openBooks(s *service, reader *nomad.Client) (*books, error) {
	c := s.config.Load()
	log := s.logger.Named("ledger")
	k := &keeper.Keeper{State: s.state, Past: reader, Logger: log, Keep: c.Ledger.Keep, Now: time.Now}
	var opened store
	var err error
	switch {
	case c.Ledger.Postgres != "":
		opened, err = postgres.Open(postgres.Options{URL: c.Ledger.Postgres, Replica: c.Listen.Advertise, Keep: c.Ledger.Keep, Now: time.Now})
		k.Samples = s.decides // one of those that share it
	case c.Ledger.Path != "":
		opened, err = openFolder(c, func(err error) { log.Error("ledger", "error", err); s.state.Trouble(err) })
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k.Store = opened
	if c.Ledger.Measure {
		k.Sample, s.meter.Always = c.MonitorInterval, true
	}
	b := &books{store: opened, keeper: k, config: s.config.Load, tallies: newTallies()}
	k.Tally, k.Report = b.tallies.add, b.report
	s.state.FollowTurnover()
	return b, nil
}

// openFolder opens a ledger in a folder, now or later.
func openFolder(c *config.Config, trouble func(error)) (store, error) {
	open := func() (store, error) {
		return files.Open(c.Ledger.Path, files.Options{Keep: c.Ledger.Keep, MaxBytes: c.Ledger.MaxBytes, Now: time.Now, Trouble: trouble})
	}
	opened, err := open()
	if errors.Is(err, files.ErrSetUp) {
		return nil, err
	}
	if err != nil {
		return &shelf{open: open}, nil // the keeper tries it at once, and tells of the error
	}
	return opened, nil
}

// report records how the store does.
func (b *books) report(s keeper.Status) {
	b.tallies.unstored.Set(float64(s.Unstored))
	b.tallies.dropped.Add(float64(max(0, s.Dropped-b.dropped))) // of a later outage it begins at 0
	b.dropped = s.Dropped
	b.tallies.writable.Set(1)
	var outage *view.LedgerOutage
	if !s.Since.IsZero() {
		b.tallies.writable.Set(0)
		outage = &view.LedgerOutage{Since: s.Since.UTC(), Waiting: s.Unstored, Dropped: s.Dropped}
	}
	b.outage.Store(outage)
}

// Entries hands over the holdings between two times.
func (b *books) Entries(ctx context.Context, from, to time.Time, each func(*ledger.Entry)) error {
	fold := ledger.NewFold(from, to, each)
	err := b.store.Read(ctx, from, to, fold.Add)
	if err != nil && b.outage.Load() != nil {
		err = errors.Join(rest.ErrLedgerAway, err)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("read the ledger: %w", err)
	}
	if err == nil {
		fold.Close()
	}
	return err
}

// Prices are the price list, and its currency.
func (b *books) Prices() (ledger.Prices, string) {
	c := b.config()
	return c.Prices, c.Ledger.Currency
}
