// SPDX-License-Identifier: MPL-2.0

// Package miglayout decides which GPUs to cut into other MIG instances, so that waiting work
// finds an instance.
//
//	GPUs with their instances ─┐
//	waiting requests ──────────┼──► Decide ──► re-cuts, each with its reason
//	learned demand ────────────┤          └──► for each request left over, why
//	bounds of the operator ────┘
//
// It knows no Nomad and no clock: the same input gives the same answer. An instance that is in
// use or reserved, or whose state is unknown, is never removed.
package miglayout
