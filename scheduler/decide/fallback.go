// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// FallsBack reports whether a group has waited for GPUs as long as its author lets it, and is
// to run without: one of which nothing runs, and nothing is about to. A gang falls back as a
// whole. The registered group counts: that may have another time than it was
// decided about with, and the record may be lost.
func FallsBack(tx *state.Tx, w *state.Waiting) bool {
	j := tx.Cluster.Job(w.Job)
	own := j.Group(w.Group)
	if own == nil || own.FallbackAfter == 0 || tx.Now().Sub(w.Turn.Since) < time.Duration(own.FallbackAfter) || tx.Cluster.Unchangeable(w.Job) || w.Held == "" && !tx.Queue.Repeats(w.Job).May() {
		return false
	}
	if r := tx.Queue.Record(w.Job); r != nil && !r.Groups[w.Group].FellBack.IsZero() {
		return false
	}
	return !slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		ofIt := g.Name == w.Group || own.Gang && g.Gang
		return ofIt && (tx.Cluster.Live(w.Job, g.Name) > 0 || tx.Capacity.Assumed(w.Job, g.Name) > 0 || g.FallbackAfter == 0)
	})
}

// onCPU is the decision to run a group without GPUs. From here on it costs its queue nothing
// and is no work of the service's, until it is submitted again.
func onCPU(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was record.Group) (record.Group, error) {
	if a.FallbackAfter == 0 {
		return was, fmt.Errorf("group %q of job %q is registered without %s by now", a.Group, key, admit.KeyFallback)
	}
	tx.Forget(key, a.Group)
	g := record.Group{Key: a.Key(), Ask: *a, Shown: was.Shown, FellBack: tx.Now()}
	g.Ask.Was = nil
	g.Decision = admit.Decision{Group: a.Group, OnCPU: true, Bounds: was.Decision.Bounds, Tasks: make([]admit.TaskDecision, len(a.Tasks))}
	for i, t := range a.Tasks {
		g.Decision.Tasks[i].Task = t.Task
	}
	waited := a.FallbackAfter
	if b := tx.Cluster.Blocked(key); b != nil {
		waited = tx.Now().Sub(b.Since).Round(time.Second)
	}
	text := fmt.Sprintf("it waited %s for %s and runs without a GPU, until it is submitted again", waited, a)
	g.Decision.Explanation = []string{text}
	g.Shown.At, g.Shown.Outcome, g.Shown.Choices = tx.Now(), view.OnCPU, nil
	g.Shown.Explanation = view.Explanation{Summary: text}
	tx.NoteDecision(g.Shown)
	tx.Note(view.Event{Kind: "fallback", Namespace: key.Namespace, JobID: key.ID, Text: fmt.Sprintf("group %s of job %s: %s", a.Group, key, text)})
	return g, nil
}
