// SPDX-License-Identifier: MPL-2.0

// Package place decides where GPU work runs. A snapshot of the cluster and a
// request go in; a placement with its score, or the reasons why there is none,
// come out.
//
// The package is pure: it knows no Nomad, network, clock, file or process.
// Times are passed in. The same snapshot, demand and request always give the
// same answer; ties go to the node that was added to the snapshot first, and
// within a node to the GPU with the lowest index.
//
// A [Planner] answers: [Planner.Place] for one task, [Planner.PlaceGang] for
// tasks that start together, [Planner.Preempt] when room must be made,
// [Planner.Rebalance] for moves that would pay, [Planner.Explain] for people.
//
// It is the top of a house whose storeys can each be read alone:
//
//	internal/cluster   what there is, and who holds what: [Snapshot]
//	internal/fit       what a task asks for, and where that fits: [Request]
//	internal/score     what a placement is worth: [Weights], the policies
//	internal/evict     whose work goes
//	outlook            when what waits will start
//	forecast           demand, lifetimes, waste, prices: amounts, without nodes
//	quota              queues, guarantees, who yields to whom
//	ranking, splitmix  the best of many scores, kept up to date; random draws
//
// What callers need of the internal ones has its name here (names.go).
package place
