package decide

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// RecordVersion is the version of the records that this release writes.
// Readers accept every version up to it.
const RecordVersion = 1

// recordPrefix is where records lie among the Nomad Variables.
const recordPrefix = "nomad-gpu/decisions/"

// Record is what was decided about a job.
type Record struct {
	Version   int       `json:"v"`
	At        time.Time `json:"at"`
	Namespace string    `json:"namespace"`
	JobID     string    `json:"job_id"`
	// Groups are by name.
	Groups map[string]GroupRecord `json:"groups"`

	stored stored // where it lies
	// settled is when Nomad took what was recorded; zero: not known.
	settled time.Time
}

// GroupRecord is what was decided about one group.
type GroupRecord struct {
	// Key is Ask.Key: while it stays, so do the device blocks.
	Key      string         `json:"key"`
	Ask      admit.Ask      `json:"ask"`
	Decision admit.Decision `json:"decision"`
	// Cost is the least that a quota pays per alloc.
	Cost place.Charge `json:"cost"`
	// Direct groups came around the service, and were only changed since to keep
	// them off a node or to hold them.
	Direct bool `json:"direct,omitempty"`
	// Covered groups hold the slices that go with their compute.
	Covered bool `json:"covered,omitempty"`
	// Flights are the allocs that this decision placed.
	Flights []place.Usage `json:"flights,omitempty"`
	// Excluded nodes are left out of the candidates for a while, because the
	// room there was made for somebody else: node → namespace/job.
	Excluded map[string]string `json:"excluded,omitempty"`
	Shown    view.Decision     `json:"shown"`

	print string // Ask.Fingerprint of the decision, while the book has it
}

func (r *Record) key() nomad.JobKey { return nomad.JobKey{Namespace: r.Namespace, ID: r.JobID} }

// recordPath is a job's place. Job IDs may hold what a path may not.
func recordPath(key nomad.JobKey) string {
	sum := sha256.Sum256([]byte(key.Namespace + "\x00" + key.ID))
	return recordPrefix + hex.EncodeToString(sum[:16])
}

// Store keeps records; *nomad.Store does.
type Store interface {
	Get(ctx context.Context, path string) (nomad.Item, error)
	List(ctx context.Context, prefix string) (map[string]uint64, error)
	Put(ctx context.Context, item nomad.Item) (uint64, error)
	Delete(ctx context.Context, path string, index uint64) error
}

// readRecord returns a job's record; one that does not exist is empty.
func readRecord(ctx context.Context, s Store, key nomad.JobKey) (*Record, error) {
	return readRecordAt(ctx, s, recordPath(key), key)
}

func readRecordAt(ctx context.Context, s Store, path string, key nomad.JobKey) (*Record, error) {
	text, at, err := readText(ctx, s, path)
	if err != nil {
		return nil, fmt.Errorf("read decision of job %q: %w", key, err)
	}
	r := &Record{Version: RecordVersion, Namespace: key.Namespace, JobID: key.ID, Groups: map[string]GroupRecord{}, stored: at}
	if text == "" {
		return r, nil
	}
	var stored Record
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("decode decision of job %q: %w", key, err)
	}
	if stored.Version < 1 || stored.Version > RecordVersion {
		return nil, fmt.Errorf("decision of job %q has version %d, this release reads 1 to %d", key, stored.Version, RecordVersion)
	}
	stored.stored = at
	return &stored, nil
}

// write stores the record if nobody else did since it was read.
func (r *Record) write(ctx context.Context, s Store) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode decision of job %q: %w", r.key(), err)
	}
	r.stored, err = writeText(ctx, s, recordPath(r.key()), r.key().String(), string(text), r.stored)
	return err
}

// remove deletes the record if nobody wrote it since it was read.
func (r *Record) remove(ctx context.Context, s Store) error {
	return removeText(ctx, s, recordPath(r.key()), r.stored)
}

// clone is a copy whose groups can be changed.
func (r *Record) clone() *Record {
	out := *r
	out.Groups = make(map[string]GroupRecord, len(r.Groups))
	for name, g := range r.Groups {
		out.Groups[name] = g
	}
	return &out
}

// ErrBusy is wrapped when somebody else decided about the same job at the same
// moment.
var ErrBusy = errors.New("the job is being decided about by another request; try again")

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
