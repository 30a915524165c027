// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Key names an entry: what one task of an alloc holds of one GPU. Nomad gives an alloc its
// devices once, so there is one entry for the life of the alloc.
type Key struct {
	Alloc string `json:"alloc,omitempty"`
	Task  string `json:"task,omitempty"`
	GPU   string `json:"gpu,omitempty"` // UUID
}

// Compare orders keys by alloc, task and GPU.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Alloc, o.Alloc), strings.Compare(k.Task, o.Task), strings.Compare(k.GPU, o.GPU))
}

// Kind is what a record says.
type Kind string

// The kinds of records.
const (
	KindHold Kind = "hold" // a task holds part of a GPU, since At
	KindUse  Kind = "use"  // the measured use until At, since the last such record
	KindEnd  Kind = "end"  // it holds it no longer, since At
	KindSeen Kind = "seen" // the service watched until At
)

// Record is one line of the ledger.
type Record struct {
	Kind Kind      `json:"k"`
	At   time.Time `json:"at"`
	Key
	*Hold          // of a hold
	Compute Sketch `json:"compute,omitzero"` // of a use: GPU milli
	Memory  Sketch `json:"memory,omitzero"`  // of a use: MiB
	Why     string `json:"why,omitempty"`    // of an end
}

// Hold is a task's share of a GPU. It is written once, as it was when the alloc was placed.
type Hold struct {
	Namespace string `json:"ns"`
	Job       string `json:"job"`
	// Parent is the periodic or parameterized job that the job is a child of.
	Parent  string `json:"parent,omitempty"`
	Group   string `json:"group"`
	Queue   string `json:"queue,omitempty"` // that paid
	Node    string `json:"node"`
	Type    string `json:"type,omitempty"`    // H100
	Profile string `json:"profile,omitempty"` // of a MIG instance
	Mode    string `json:"mode"`              // whole, slice or shared

	// Milli and MemoryMiB are what counts against a quota: the larger of the parts of
	// compute and memory, and the memory.
	Milli     int64 `json:"milli"`
	MemoryMiB int64 `json:"mib"`
	// AskedMilli and AskedMiB are the promise to the task; 0 on a GPU that tasks
	// take turns on.
	AskedMilli int64 `json:"asked_milli,omitempty"`
	AskedMiB   int64 `json:"asked_mib,omitempty"`

	// What follows is the alloc's, and empty in entries of releases that did not keep it.

	// Wanted is since when the alloc was waited for; zero: it was not, or that is not known.
	Wanted time.Time `json:"wanted,omitzero"`
	// HostMHz and HostMiB are its CPU and memory, Priority is what counts in its queue.
	HostMHz  int64 `json:"host_mhz,omitempty"`
	HostMiB  int64 `json:"host_mib,omitempty"`
	Priority int   `json:"priority,omitempty"`
}

// Reasons for an end, beside Nomad's client statuses (complete, failed, lost).
const (
	// EndPurged is the end of an alloc that Nomad does not know any more, as the service
	// saw it go.
	EndPurged = "purged"
	// EndUnseen is an end that was not seen: the entry counts until the service watched last.
	EndUnseen = "unseen"
)

// longestName is how many bytes of a name the ledger keeps. Nomad has no bound for the
// names that authors give, and databases have one for their keys: a name beyond that would
// keep all records from being stored, and long ones drive older records out.
const longestName = 256

// Name is the name of a job, group or task as the ledger keeps it. One that is too long is
// cut, and ends in a hash of all of it.
func Name(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= longestName {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	mark := "~" + hex.EncodeToString(sum[:8])
	return strings.ToValidUTF8(text[:longestName-len(mark)], "") + mark
}

// Entry is what a task held of a GPU within a time, and used of it.
type Entry struct {
	Key
	Hold
	From, To time.Time // within the time that is asked about
	// Open is set while the task holds the GPU.
	Open            bool
	Why             string // how it ended; empty: it did not, within the time
	Compute, Memory Sketch
}

// Seconds is how long the entry lasted.
func (e *Entry) Seconds() int64 { return max(0, int64(e.To.Sub(e.From)/time.Second)) }
