// SPDX-License-Identifier: MPL-2.0

package view

import "time"

// Decision is an answer of the placement core, kept for explanation.
type Decision struct {
	At        time.Time `json:"at"`
	Namespace string    `json:"namespace"`
	JobID     string    `json:"job_id"`
	Group     string    `json:"group"`
	Queue     string    `json:"queue,omitempty"`
	Priority  int       `json:"priority"`
	Ask       string    `json:"ask"`
	Policy    string    `json:"policy"`
	// Outcome is one of those below.
	Outcome string `json:"outcome"`
	// Choices are where the allocs should go, best first; empty unless placed.
	Choices []Choice `json:"choices,omitempty"`
	Explanation
}

// Outcomes of a decision.
const (
	// Placed work has room for all of its allocs.
	Placed = "placed"
	// Registered work is placed by Nomad alone: when it is started, on every node, or
	// because it came around the service.
	Registered = "registered"
	// Waits is registered work for which there is no room yet, or not for all of it.
	// Nomad starts it when room returns.
	Waits = "waits"
	// Held work is registered, and kept from starting.
	Held = "held"
	// OnCPU is work that waited for GPUs as long as it said, and was registered without.
	OnCPU   = "on_cpu"
	Refused = "refused"
)

// Choice is one node, and the GPUs on it.
type Choice struct {
	NodeID   string   `json:"node_id"`
	NodeName string   `json:"node_name"`
	GPUs     []string `json:"gpus"`   // UUIDs
	Groups   []string `json:"groups"` // Nomad device groups, in the order of GPUs
	// Score is in thousandths; the higher the better. Terms add up to it.
	Score int64  `json:"score"`
	Terms []Term `json:"terms,omitempty"`
	// LostMilli is the capacity that it takes from later work, in thousandths of a GPU.
	LostMilli int64 `json:"lost_milli,omitempty"`
	// Whole is how many GPUs there have nothing on them afterwards, WholeNow before.
	Whole    int `json:"whole"`
	WholeNow int `json:"whole_now"`
	// Why says what speaks for it or, of a node that was not chosen, against it.
	Why string `json:"why,omitempty"`
}

// Term is one part of a score.
type Term struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight"` // thousandths
	Value  int64  `json:"value"`  // thousandths, before the weight
}

// Explanation gives the reasons of a decision.
type Explanation struct {
	// Summary is one sentence.
	Summary string `json:"summary"`
	// RunnersUp are the next best nodes.
	RunnersUp []Choice `json:"runners_up,omitempty"`
	// Fits is how many nodes could take the ask now; Reasons is why the
	// others could not, most nodes first.
	Fits    int      `json:"fits"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// Reason is why a number of nodes cannot take an ask.
type Reason struct {
	Nodes int    `json:"nodes"`
	Why   string `json:"why"`
	// Never nodes could not take it even when empty.
	Never bool `json:"never"`
	// Preempted of these nodes could take it after evictions that are allowed.
	Preempted int `json:"after_preempting,omitempty"`
}
