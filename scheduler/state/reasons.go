// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// reasons are why groups still wait, for people, by job/group.
type reasons struct {
	futile  map[string]bool   // groups that no eviction would help
	unmoved map[string]string // why no work was moved for groups
	uncut   map[string]string // why no GPU is cut again for groups
}

func newReasons() *reasons {
	return &reasons{futile: map[string]bool{}, unmoved: map[string]string{}, uncut: map[string]string{}}
}

// forget drops those of a job that waits no more.
func (r *reasons) forget(key nomad.JobKey) {
	of := func(name string) bool { return strings.HasPrefix(name, key.String()+"/") }
	maps.DeleteFunc(r.futile, func(name string, _ bool) bool { return of(name) })
	maps.DeleteFunc(r.unmoved, func(name, _ string) bool { return of(name) })
}

// Told is what people are told about a waiting group, as it was found last.
type Told struct {
	Futile  bool       // no eviction that is allowed would make room
	Unmoved string     // why no work was moved for it; empty: it was, or was not looked for
	Uncut   string     // why no GPU is cut again for it; empty: one is, or it was not looked for
	Start   *Start     // nil where nothing was estimated
	Fits    *view.Fits // a smaller request that would start now; nil where none is known
	Lack    Lack
}

// Told is what people are told about a group that waits.
func (q *Queue) Told(key nomad.JobKey, group string) Told {
	name := key.String() + "/" + group
	t := Told{Futile: q.futile[name], Unmoved: q.unmoved[name], Uncut: q.uncut[name], Fits: q.starts.fits[name], Lack: q.lacks[name]}
	if s, known := q.groups[name]; known {
		t.Start = &s
	}
	return t
}

// NoteUncut keeps for people why no GPU is cut again for groups that wait, by job/group.
func (tx *Tx) NoteUncut(why map[string]string) {
	if !maps.Equal(tx.Queue.reasons.uncut, why) {
		clear(tx.Queue.reasons.uncut)
		maps.Copy(tx.Queue.reasons.uncut, why)
		tx.version++
	}
}

// NoteFutile keeps for people whether evictions were looked for in vain.
func (tx *Tx) NoteFutile(key nomad.JobKey, group string, futile bool) {
	if tx.Queue.futile[key.String()+"/"+group] == futile {
		return
	}
	tx.version++
	if futile {
		tx.Queue.reasons.futile[key.String()+"/"+group] = true
	} else {
		delete(tx.Queue.reasons.futile, key.String()+"/"+group)
	}
}

// NoteUnmoved keeps for people why no work was moved for a group that waits for room.
func (tx *Tx) NoteUnmoved(key nomad.JobKey, group, why string) {
	if tx.Queue.unmoved[key.String()+"/"+group] != why {
		tx.Queue.reasons.unmoved[key.String()+"/"+group] = why
		tx.version++
	}
}
