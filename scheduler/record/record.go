// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Version is that of the records which this release writes.
// Readers accept every version up to it.
const Version = 1

// decisions is where records lie.
const decisions = "nomad-gpu/decisions/"

// Record is the decision about a job.
type Record struct {
	Version int       `json:"v"`
	At      time.Time `json:"at"`
	// Index is Nomad's, as far as it was seen when this was decided; 0: not known.
	Index     uint64 `json:"index,omitempty"`
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	// Groups are by name.
	Groups map[string]Group `json:"groups"`
	// Trace is that of the admission; none: it is not traced.
	Trace Trace `json:"trace,omitzero"`

	// Settled is when Nomad took the recorded decision; zero: not known.
	Settled time.Time `json:"-"`

	stored stored // where it lies
}

// Trace is the span of an admission, for what follows it.
type Trace struct {
	Parent string    `json:"parent"` // a traceparent of W3C's Trace Context
	At     time.Time `json:"at"`     // of the decision
}

// Group is the decision about one group.
type Group struct {
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
	// Again is set where something of it had completed when its author registered it again: where
	// that changed anything, Nomad runs it again.
	Again bool `json:"again,omitempty"`
	// Replaces is set where something of an earlier request ran when this was decided:
	// Nomad replaces it as this one starts.
	Replaces bool `json:"replaces,omitempty"`
	// Assumed are the allocs that this decision placed; of what is held until all of its room is
	// there, those that room is being made for, since its last attempt.
	Assumed []place.Usage `json:"flights,omitempty"`
	// Excluded nodes are left out of the candidates for a while, because the
	// room there was made for another job: node → namespace/job.
	Excluded map[string]string `json:"excluded,omitempty"`
	// Only are the nodes that a system group is held to, because its queue cannot pay
	// for all that it would start on; none: it is not.
	Only []string `json:"only,omitempty"`
	// FellBack is when the group was registered without GPUs, because it had waited for them
	// long enough; zero: it was not.
	FellBack time.Time `json:"fell_back,omitzero"`
	// Attempts to start the group that came to nothing.
	Attempts Attempts      `json:"attempts,omitzero"`
	Shown    view.Decision `json:"shown"`

	// Fingerprint is Ask.Fingerprint of the decision; see Record.Seal.
	Fingerprint string `json:"-"`
}

// New returns the record of a job about which nothing was decided yet.
func New(key nomad.JobKey) *Record {
	return &Record{Version: Version, Namespace: key.Namespace, JobID: key.ID, Groups: map[string]Group{}}
}

// Key is the job that the record is about.
func (r *Record) Key() nomad.JobKey { return nomad.JobKey{Namespace: r.Namespace, ID: r.JobID} }

// Seal computes what the groups look like once they are registered as decided.
func (r *Record) Seal() {
	for name, g := range r.Groups {
		g.Fingerprint = g.Ask.Fingerprint(&g.Decision)
		r.Groups[name] = g
	}
}

// Stored reports whether the record lies in a Variable.
func (r *Record) Stored() bool { return r.stored.index != 0 }

// Text is a record as it is stored.
type Text []byte

// Text encodes the record.
func (r *Record) Text() (Text, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode decision of job %q: %w", r.Key(), err)
	}
	return text, nil
}

// InOne reports whether a record fits into one Variable.
func (t Text) InOne() bool { return len(t) <= partSize }

// SameAs reports whether two records of a job lie in the same Variable, unchanged.
func (r *Record) SameAs(other *Record) bool { return r.stored.index == other.stored.index }

// Replacing makes the record take another's place when it is written.
func (r *Record) Replacing(other *Record) *Record {
	r.stored = other.stored
	return r
}

// Lost is a copy of a record whose Variable is gone.
func (r *Record) Lost() *Record {
	out := r.Clone()
	out.stored = stored{}
	return out
}

// path is the place of a job's record.
func path(key nomad.JobKey) string { return decisions + hashOf(key) }

// hashOf is a job's name in paths. Job IDs may hold what a path may not.
func hashOf(key nomad.JobKey) string {
	sum := sha256.Sum256([]byte(key.Namespace + "\x00" + key.ID))
	return hex.EncodeToString(sum[:16])
}

// Store keeps records; *nomad.Store does.
type Store interface {
	Get(ctx context.Context, path string) (nomad.Item, error)
	List(ctx context.Context, prefix string) (map[string]uint64, error)
	Put(ctx context.Context, item nomad.Item) (uint64, error)
	Delete(ctx context.Context, path string, index uint64) error
}

// Read returns a job's record; one that does not exist is empty.
func Read(ctx context.Context, s Store, key nomad.JobKey) (*Record, error) {
	return readAt(ctx, s, path(key), key)
}

func readAt(ctx context.Context, s Store, at string, key nomad.JobKey) (*Record, error) {
	text, lies, err := readText(ctx, s, at)
	if err != nil {
		return nil, fmt.Errorf("read decision of job %q: %w", key, err)
	}
	r := New(key)
	r.stored = lies
	if text == "" {
		return r, nil
	}
	var stored Record
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("decode decision of job %q: %w", key, err)
	}
	if stored.Version < 1 || stored.Version > Version {
		return nil, fmt.Errorf("decision of job %q has version %d, this release reads 1 to %d", key, stored.Version, Version)
	}
	stored.stored = lies
	return &stored, nil
}

// Write stores the record if no other writer did since it was read.
func (r *Record) Write(ctx context.Context, s Store) error {
	text, err := r.Text()
	if err != nil {
		return err
	}
	return r.WriteText(ctx, s, text)
}

// WriteText is Write of a record that was encoded before.
func (r *Record) WriteText(ctx context.Context, s Store, text Text) (err error) {
	r.stored, err = writeText(ctx, s, path(r.Key()), r.Key().String(), string(text), r.stored)
	return err
}

// Remove deletes the record if it was not written since it was read.
func (r *Record) Remove(ctx context.Context, s Store) error {
	return removeText(ctx, s, path(r.Key()), r.stored)
}

// Clone is a copy whose groups can be changed.
func (r *Record) Clone() *Record {
	out := *r
	out.Groups = make(map[string]Group, len(r.Groups))
	for name, g := range r.Groups {
		out.Groups[name] = g
	}
	return &out
}
