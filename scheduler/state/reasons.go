// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
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

// Futile reports whether no eviction that is allowed would make room for a group.
func (r *reasons) Futile(key nomad.JobKey, group string) bool {
	return r.futile[key.String()+"/"+group]
}

// Unmoved is why no work was moved for a group, when it was looked for last; empty: it
// was, or it was not looked for.
func (r *reasons) Unmoved(key nomad.JobKey, group string) string {
	return r.unmoved[key.String()+"/"+group]
}

// Uncut is why no GPU is cut again for a group, when that was looked for last; empty: one is,
// or it was not looked for.
func (r *reasons) Uncut(key nomad.JobKey, group string) string {
	return r.uncut[key.String()+"/"+group]
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
	if tx.Queue.Futile(key, group) == futile {
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
	if tx.Queue.Unmoved(key, group) != why {
		tx.Queue.reasons.unmoved[key.String()+"/"+group] = why
		tx.version++
	}
}
