// SPDX-License-Identifier: MPL-2.0

// Package cluster is what there is and who holds what of it: nodes, their GPUs, and usages.
//
// A [Snapshot] is updated in place: [Snapshot.AddNode], [Snapshot.Apply],
// [Snapshot.Release]. Release undoes Apply exactly. It knows no requests and judges nothing
// but capacity. Packages above it read its fields; only its methods change them.
//
// GPUs of one node that are alike (model, mode, memory, sharing) form a [Pool]. A task's
// GPUs always come from one pool, so that they are equal; a node with one kind of GPU, the
// usual case, is one pool. Pools in the same state form a [Class], which is evaluated once
// per shape of request.
package cluster
