// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// written is everything of a decision that binds a group once it stands in the
// job. Preferences are left out: they bind nothing.
type written struct {
	Key        string
	Marked     bool
	Hold       string
	Ranks      string `json:",omitempty"`
	Candidates []string
	Slots      int          `json:",omitempty"`
	Bounds     []Constraint `json:",omitempty"` // those that bear a mark
	Tasks      []writtenTask
}

type writtenTask struct {
	Devices []writtenDevice
	Bound   *Constraint `json:",omitempty"`
	Share   shareBlock
}

type writtenDevice struct {
	Name        string
	Count       int64
	Constraints []Constraint
}

// Fingerprint names what a decision writes into the group of an ask. A job that
// Nomad has is known by it: [Ask.Registered] gives the same for a group that is
// registered as it was decided, and for no other.
func (a *Ask) Fingerprint(d *Decision) string {
	w := written{Key: a.Key(), Marked: true, Ranks: a.ranks(), Candidates: slices.Compact(slices.Sorted(slices.Values(d.Candidates)))}
	if d.limited() {
		w.Slots = d.Slots
	}
	for _, c := range d.Bounds {
		if bound(c).ours() {
			w.Bounds = append(w.Bounds, c)
		}
	}
	switch {
	case a.Template(), a.Child:
		if w.Candidates, w.Slots = nil, 0; a.Template() || d.Hold != nil {
			w.Hold = bornWith.text()
		}
	case d.Hold != nil:
		w.Hold, w.Candidates = d.Hold.text(), nil
	}
	for i := range a.Tasks {
		if i < len(d.Tasks) {
			w.Tasks = append(w.Tasks, a.written(&a.Tasks[i], &d.Tasks[i]))
		}
	}
	return w.sum()
}

// Registered names what the group of an ask holds of an earlier admission.
func (a *Ask) Registered() string {
	if a.Was == nil {
		return written{Key: a.Key()}.sum()
	}
	w := written{Key: a.Key(), Marked: true, Hold: a.Was.Hold, Ranks: a.toldRanks(), Candidates: slices.Sorted(slices.Values(a.Was.Candidates)), Bounds: a.Was.Bounds}
	if w.Hold != "" { // earlier releases wrote candidates beside it
		w.Candidates = nil
	} else if len(w.Candidates) > 0 {
		w.Slots = a.Was.Slots
	}
	for i := range a.Tasks {
		w.Tasks = append(w.Tasks, a.written(&a.Tasks[i], &a.Was.Tasks[i]))
	}
	return w.sum()
}

// Inherited is Registered as the job would have it that this one is a child of.
func (a Ask) Inherited(parent string) string {
	if a.JobID = parent; a.Was != nil {
		was := *a.Was
		was.Hold, a.Was = bornWith.text(), &was
	}
	return a.Registered()
}

// written is only the bound for a task that asks with its own device blocks: these are
// part of the key.
func (a *Ask) written(t *TaskAsk, decided *TaskDecision) writtenTask {
	if t.Plain() {
		return writtenTask{Bound: decided.Bound}
	}
	var w writtenTask
	for _, d := range decided.Devices {
		w.Devices = append(w.Devices, writtenDevice{d.Name, d.Count, d.Bounds(a.Sharing)})
	}
	if t.Driver == gpu.DriverName {
		w.Share = driverBlock(decided)
	}
	return w
}

func (w written) sum() string {
	text, err := json.Marshal(w)
	if err != nil { // strings and integers always marshal
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Decision is what an earlier admission wrote, as a decision: applied to the
// ask's job it changes nothing.
func (e *Earlier) Decision(group string) Decision {
	d := Decision{Group: group, Candidates: slices.Clone(e.Candidates), Slots: e.Slots, Bounds: slices.Clone(e.Bounds), Preferred: slices.Clone(e.Preferred), Tasks: slices.Clone(e.Tasks), WithoutCanaries: e.Canaries != nil}
	if e.Hold != "" {
		d.Hold = parseHold(e.Hold)
	}
	return d
}
