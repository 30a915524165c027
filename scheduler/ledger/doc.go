// SPDX-License-Identifier: MPL-2.0

// Package ledger accounts for GPUs: which task held how much of which GPU from when to
// when, its use of that, and the sum per team.
//
//	Record ── the line that is stored: hold, use, end, seen
//	Fold   ── records of a time ─► entries, one per task and GPU
//	Report ── entries ─► rows per queue, namespace, job, node or type, with hours and cost
//	Advise ── entries ─► jobs that ask for more than they use
//
// An entry is known by alloc, task and GPU, so a record that is stored twice counts once.
// The package is pure: package files stores records; scheduler/keeper makes them.
package ledger
