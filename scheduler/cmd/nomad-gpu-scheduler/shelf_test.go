// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/keeper"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger/files"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// withFolder is a configuration whose ledger lies in a folder.
func withFolder(path string) *config.Config {
	c := &config.Config{}
	c.Ledger = config.Ledger{Path: path, Keep: 24 * time.Hour, MaxBytes: 1 << 20}
	return c
}

// TestALedgerOnAFullDiskIsOpenedLater: the service starts, and the ledger is there as soon as
// the disk takes something.
func TestALedgerOnAFullDiskIsOpenedLater(t *testing.T) {
	dir := tmpfs.Dir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "nr_inodes=1"); err != nil {
		t.Skip("it takes root: ", err)
	}
	s, err := openFolder(withFolder(filepath.Join(dir, "ledger")), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // the test is over
	seen := []ledger.Record{{Kind: ledger.KindSeen, At: time.Now().UTC()}}
	if err := s.Append(t.Context(), seen); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a full disk says %v", err)
	}
	if _, _, err := s.Recall(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("recalled from a full disk: %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if _, at, err := s.Recall(t.Context()); err != nil || !at.Equal(seen[0].At) {
		t.Errorf("recalled %s, %v", at, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), seen); err == nil {
		t.Error("it was written after its end")
	}
}

// TestALedgerThatIsSetUpWrongIsRefused: waiting does not mend it.
func TestALedgerThatIsSetUpWrongIsRefused(t *testing.T) {
	dir := t.TempDir()
	used := filepath.Join(dir, "used")
	other, err := openFolder(withFolder(used), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() }) //nolint:errcheck // the test is over
	file := filepath.Join(dir, "file")
	later := filepath.Join(dir, "later")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(later, 0o700), os.WriteFile(filepath.Join(later, "2026-10-05.jsonl"), []byte("{\"k\":\"segment\",\"v\":99}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		used: "another process writes to " + used, filepath.Join(file, "ledger"): "not a directory", later: "has version 99",
		filepath.Join(dir, strings.Repeat("x", 300)): "file name too long",
	} {
		if s, err := openFolder(withFolder(path), func(error) {}); !errors.Is(err, files.ErrSetUp) || !strings.Contains(err.Error(), want) {
			t.Errorf("opened %v, %v; want %q", s, err, want)
		}
	}
}

// TestTheStandingOfALedgerIsReported: what is dropped is counted over all outages.
func TestTheStandingOfALedgerIsReported(t *testing.T) {
	b := &books{tallies: newTallies()}
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.tallies.all()...)
	since := time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)
	for i, row := range []struct {
		told    keeper.Status
		outage  *view.LedgerOutage
		dropped float64 // in all
	}{
		{keeper.Status{}, nil, 0},
		{keeper.Status{Since: since, Unstored: 7, Dropped: 2}, &view.LedgerOutage{Since: since, Waiting: 7, Dropped: 2}, 2},
		{keeper.Status{Since: since, Unstored: 8, Dropped: 5}, &view.LedgerOutage{Since: since, Waiting: 8, Dropped: 5}, 5},
		{keeper.Status{Unstored: 3}, nil, 5},
		{keeper.Status{Since: since, Dropped: 1}, &view.LedgerOutage{Since: since, Dropped: 1}, 6},
	} {
		b.report(row.told)
		if got := b.outage.Load(); !reflect.DeepEqual(got, row.outage) {
			t.Errorf("report %d: outage %+v, want %+v", i, got, row.outage)
		}
		writable := map[bool]float64{true: 1}[row.outage == nil]
		want := map[string]float64{"nomad_gpu_ledger_writable": writable, "nomad_gpu_ledger_unstored_records": float64(row.told.Unstored), "nomad_gpu_ledger_dropped_records_total": row.dropped}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		if !maps.Equal(got, want) {
			t.Errorf("report %d: %v, want %v", i, got, want)
		}
	}
}
