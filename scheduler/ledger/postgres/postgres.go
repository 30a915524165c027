// SPDX-License-Identifier: MPL-2.0

// Package postgres keeps the ledger in a PostgreSQL database that all replicas write to,
// for more than one of them or for years of data.
//
//	gpu_ledger_entries    one row for each task of an alloc and GPU; ended is null while it holds it
//	gpu_ledger_use        the measured use of an entry until a time
//	gpu_ledger_replicas   until when each replica watched
//
// Replicas write the same entries, whose keys are the same, so each is there once whoever
// wrote it first. The tables can be read with SQL; costs are not in them.
package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	_ "github.com/lib/pq" // the driver

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// Options name the database, and the time for which entries are kept.
type Options struct {
	URL     string // without a password
	Replica string // the name of this replica
	Keep    time.Duration
	Now     func() time.Time
}

// Store is a ledger in a database. Its methods may be used by many goroutines.
type Store struct {
	Options
	db *sql.DB

	mu     sync.Mutex
	ready  bool // the tables are there
	pruned time.Time
}

// version is that of the tables.
const version = 1

// schema is made where it is missing. Only one replica makes it at a time. Columns that came
// later have defaults, so that an earlier release writes to the same tables.
const schema = `
SELECT pg_advisory_xact_lock(5146);
CREATE TABLE IF NOT EXISTS gpu_ledger_schema (version integer NOT NULL);
INSERT INTO gpu_ledger_schema SELECT 1 WHERE NOT EXISTS (SELECT FROM gpu_ledger_schema);
CREATE TABLE IF NOT EXISTS gpu_ledger_entries (
  alloc text NOT NULL, task text NOT NULL, gpu text NOT NULL,
  namespace text NOT NULL, job text NOT NULL, parent text NOT NULL, task_group text NOT NULL, queue text NOT NULL,
  node text NOT NULL, type text NOT NULL, profile text NOT NULL, mode text NOT NULL,
  milli bigint NOT NULL, memory_mib bigint NOT NULL, asked_milli bigint NOT NULL, asked_mib bigint NOT NULL,
  began timestamptz NOT NULL, ended timestamptz, why text NOT NULL DEFAULT '',
  PRIMARY KEY (alloc, task, gpu));
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'gpu_ledger_entries'::regclass AND attname = 'wanted') THEN
    ALTER TABLE gpu_ledger_entries ADD COLUMN wanted timestamptz, ADD COLUMN priority integer NOT NULL DEFAULT 0,
      ADD COLUMN host_mhz bigint NOT NULL DEFAULT 0, ADD COLUMN host_mib bigint NOT NULL DEFAULT 0;
  END IF;
END $$;
CREATE INDEX IF NOT EXISTS gpu_ledger_entries_time ON gpu_ledger_entries (ended, began);
CREATE TABLE IF NOT EXISTS gpu_ledger_use (
  alloc text NOT NULL, task text NOT NULL, gpu text NOT NULL, until timestamptz NOT NULL, compute jsonb NOT NULL, memory jsonb NOT NULL,
  PRIMARY KEY (alloc, task, gpu, until),
  FOREIGN KEY (alloc, task, gpu) REFERENCES gpu_ledger_entries ON DELETE CASCADE);
CREATE INDEX IF NOT EXISTS gpu_ledger_use_time ON gpu_ledger_use (until);
CREATE TABLE IF NOT EXISTS gpu_ledger_replicas (replica text PRIMARY KEY, seen timestamptz NOT NULL);`

// Open opens a database, which need not answer yet.
func Open(o Options) (*Store, error) {
	db, err := sql.Open("postgres", o.URL)
	if err != nil {
		return nil, fmt.Errorf("open the ledger's database: %w", err)
	}
	db.SetMaxOpenConns(4)
	db.SetConnMaxLifetime(time.Hour)
	return &Store{Options: o, db: db}, nil
}

// Close closes the connections.
func (s *Store) Close() error { return s.db.Close() }

// prepare makes the tables, once.
func (s *Store) prepare(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("prepare the ledger's database: %w", err)
	}
	var found int
	if err := s.db.QueryRowContext(ctx, "SELECT version FROM gpu_ledger_schema").Scan(&found); err != nil {
		return fmt.Errorf("prepare the ledger's database: %w", err)
	}
	if found > version {
		return fmt.Errorf("prepare the ledger's database: its tables have version %d, this release knows 1 to %d", found, version)
	}
	s.ready = true
	return nil
}

// Append stores records: all of them, or none with an error. A record that is there already stays
// as it is, but for an end that only was not seen.
func (s *Store) Append(ctx context.Context, records []ledger.Record) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write to the ledger's database: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	for i := range records {
		if err := s.write(ctx, tx, &records[i]); err != nil {
			return fmt.Errorf("write to the ledger's database: %w", err)
		}
	}
	if err := s.prune(ctx, tx); err != nil {
		return fmt.Errorf("remove what is old from the ledger's database: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write to the ledger's database: %w", err)
	}
	return nil
}

func (s *Store) write(ctx context.Context, tx *sql.Tx, r *ledger.Record) (err error) {
	switch r.Kind {
	case ledger.KindHold:
		_, err = tx.ExecContext(ctx, `INSERT INTO gpu_ledger_entries (alloc, task, gpu, namespace, job, parent, task_group, queue, node, type, profile, mode,
			milli, memory_mib, asked_milli, asked_mib, began, wanted, priority, host_mhz, host_mib)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) ON CONFLICT DO NOTHING`,
			r.Alloc, r.Task, r.GPU, r.Namespace, r.Job, r.Parent, r.Group, r.Queue, r.Node, r.Type, r.Profile, r.Mode,
			r.Milli, r.MemoryMiB, r.AskedMilli, r.AskedMiB, r.At, sql.NullTime{Time: r.Wanted, Valid: !r.Wanted.IsZero()}, r.Priority, r.HostMHz, r.HostMiB)
	case ledger.KindEnd:
		_, err = tx.ExecContext(ctx, `UPDATE gpu_ledger_entries SET ended = $4, why = $5 WHERE alloc = $1 AND task = $2 AND gpu = $3
			AND (ended IS NULL OR why IN ($6, $7) AND $5 NOT IN ($6, $7))`, r.Alloc, r.Task, r.GPU, r.At, r.Why, ledger.EndUnseen, ledger.EndPurged)
	case ledger.KindUse:
		var compute, memory []byte
		compute, err = json.Marshal(r.Compute)
		if err == nil {
			memory, err = json.Marshal(r.Memory)
		}
		if err == nil { // the entry may have been removed for its age
			_, err = tx.ExecContext(ctx, `INSERT INTO gpu_ledger_use SELECT alloc, task, gpu, $4::timestamptz, $5::jsonb, $6::jsonb FROM gpu_ledger_entries
				WHERE alloc = $1 AND task = $2 AND gpu = $3 ON CONFLICT DO NOTHING`, r.Alloc, r.Task, r.GPU, r.At, string(compute), string(memory))
		}
	case ledger.KindSeen:
		_, err = tx.ExecContext(ctx, `INSERT INTO gpu_ledger_replicas VALUES ($1, $2) ON CONFLICT (replica) DO UPDATE SET seen = excluded.seen`, s.Replica, r.At)
	}
	return err
}

// pruneEvery is how often entries are looked for that are too old.
const pruneEvery = time.Hour

func (s *Store) prune(ctx context.Context, tx *sql.Tx) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	if now.Sub(s.pruned) < pruneEvery {
		return nil
	}
	s.pruned = now
	for _, statement := range []string{"DELETE FROM gpu_ledger_entries WHERE ended < $1", "DELETE FROM gpu_ledger_use WHERE until < $1", "DELETE FROM gpu_ledger_replicas WHERE seen < $1"} {
		if _, err := tx.ExecContext(ctx, statement, now.Add(-s.Keep)); err != nil {
			return err
		}
	}
	return nil
}

// Recall returns the holdings that the ledger knows, and until when any replica watched.
func (s *Store) Recall(ctx context.Context) (held []ledger.Record, seen time.Time, err error) {
	if err := s.prepare(ctx); err != nil {
		return nil, seen, err
	}
	err = s.holds(ctx, s.db, "ended IS NULL", func(hold, _ *ledger.Record) { held = append(held, *hold) })
	if err != nil {
		return nil, seen, err
	}
	var last sql.NullTime
	if err := s.db.QueryRowContext(ctx, "SELECT max(seen) FROM gpu_ledger_replicas").Scan(&last); err != nil {
		return nil, seen, fmt.Errorf("read the ledger's database: %w", err)
	}
	return held, last.Time, nil
}

// Ended lists what ended since a time.
func (s *Store) Ended(ctx context.Context, since time.Time) (map[ledger.Key]bool, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	ended := map[ledger.Key]bool{}
	err := s.holds(ctx, s.db, "ended >= $1", func(hold, _ *ledger.Record) { ended[hold.Key] = true }, since)
	return ended, err
}

// Read hands over the records that say something of a time.
func (s *Store) Read(ctx context.Context, from, to time.Time, each func(*ledger.Record)) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	// Entries and their use are read as of one moment.
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read the ledger's database: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	var ends []ledger.Record
	err = s.holds(ctx, tx, "began < $2 AND (ended IS NULL OR ended > $1)", func(hold, end *ledger.Record) {
		each(hold)
		if end != nil {
			ends = append(ends, *end)
		}
	}, from, to)
	if err == nil {
		err = s.uses(ctx, tx, from, to, each)
	}
	for i := range ends {
		if err == nil {
			each(&ends[i])
		}
	}
	return err
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// holds hands over the entries for which a condition holds, each with its end.
func (s *Store) holds(ctx context.Context, q querier, where string, each func(hold, end *ledger.Record), args ...any) error {
	rows, err := q.QueryContext(ctx, `SELECT alloc, task, gpu, namespace, job, parent, task_group, queue, node, type, profile, mode,
		milli, memory_mib, asked_milli, asked_mib, began, ended, why, wanted, priority, host_mhz, host_mib FROM gpu_ledger_entries WHERE `+where+` ORDER BY began, alloc, task, gpu`, args...)
	if err != nil {
		return fmt.Errorf("read the ledger's database: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r, ended, wanted, why := ledger.Record{Kind: ledger.KindHold, Hold: &ledger.Hold{}}, sql.NullTime{}, sql.NullTime{}, ""
		err := rows.Scan(&r.Alloc, &r.Task, &r.GPU, &r.Namespace, &r.Job, &r.Parent, &r.Group, &r.Queue, &r.Node, &r.Type, &r.Profile, &r.Mode,
			&r.Milli, &r.MemoryMiB, &r.AskedMilli, &r.AskedMiB, &r.At, &ended, &why, &wanted, &r.Priority, &r.HostMHz, &r.HostMiB)
		if err != nil {
			return fmt.Errorf("read the ledger's database: %w", err)
		}
		var end *ledger.Record
		if ended.Valid {
			end = &ledger.Record{Kind: ledger.KindEnd, At: ended.Time.UTC(), Key: r.Key, Why: why}
		}
		r.At = r.At.UTC()
		if wanted.Valid {
			r.Wanted = wanted.Time.UTC()
		}
		each(&r, end)
	}
	return rows.Err()
}

// uses hands over the use measured within a time.
func (s *Store) uses(ctx context.Context, q querier, from, to time.Time, each func(*ledger.Record)) error {
	rows, err := q.QueryContext(ctx, "SELECT alloc, task, gpu, until, compute, memory FROM gpu_ledger_use WHERE until > $1 AND until <= $2", from, to)
	if err != nil {
		return fmt.Errorf("read the ledger's database: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r, compute, memory := ledger.Record{Kind: ledger.KindUse}, []byte{}, []byte{}
		if err := rows.Scan(&r.Alloc, &r.Task, &r.GPU, &r.At, &compute, &memory); err != nil {
			return fmt.Errorf("read the ledger's database: %w", err)
		}
		if err := errors.Join(json.Unmarshal(compute, &r.Compute), json.Unmarshal(memory, &r.Memory)); err != nil {
			return fmt.Errorf("read the ledger's database: use of %s by alloc %s: %w", r.GPU, r.Alloc, err)
		}
		each(&r)
	}
	return rows.Err()
}
