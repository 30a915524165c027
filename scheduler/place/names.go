// SPDX-License-Identifier: MPL-2.0

package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// What a cluster is made of; package cluster says how it is kept.
type (
	Snapshot = cluster.Snapshot
	Node     = cluster.Node
	GPU      = cluster.GPU
	Usage    = cluster.Usage
	Take     = cluster.Take
	Free     = cluster.Free
	FreeGPU  = cluster.FreeGPU
	Block    = cluster.Block
	Blocks   = cluster.Blocks
)

// Unmeasured marks a utilization that has not been measured, and CoolMilli is up to which
// measured use a GPU is not hot.
const (
	Unmeasured = cluster.Unmeasured
	CoolMilli  = cluster.CoolMilli
)

// ErrCapacity is wrapped by errors about usage that does not fit.
var ErrCapacity = cluster.ErrCapacity

// NewSnapshot returns an empty cluster.
func NewSnapshot() *Snapshot { return cluster.NewSnapshot() }

// Everything selects all usages, for [Snapshot.Serves].
func Everything(*Usage) bool { return true }

// A task's request; package fit computes its share of a GPU, and where it fits.
type (
	Request = fit.Request
	Beside  = fit.Beside
	Policy  = fit.Policy
	Reason  = fit.Reason
)

// Whom a request may sit with where tasks step aside for each other.
const (
	BesideAny   = fit.BesideAny
	BesideLower = fit.BesideLower
	BesideNone  = fit.BesideNone
)

// What the best node is.
const (
	PolicyDefault  = fit.PolicyDefault  // the planner's own
	PolicyBalanced = fit.PolicyBalanced // least expected waste, then fullest
	PolicyPack     = fit.PolicyPack     // fullest node and GPU first
	PolicySpread   = fit.PolicySpread   // emptiest node and GPU first
)

// ErrRequest is wrapped by every error about a request that makes no sense on any cluster.
var ErrRequest = fit.ErrRequest

// ParsePolicy reads a policy's name; the empty name is PolicyDefault.
func ParsePolicy(name string) (Policy, error) { return fit.ParsePolicy(name) }

// What a score is made of; package score says how.
type (
	Weights = score.Weights
	Term    = score.Term
)

// DefaultWeights are the defaults of every field.
func DefaultWeights() Weights { return score.DefaultWeights() }

// FastWeights are DefaultWeights with a coarser estimate of waste: several
// times faster on large clusters, a few tenths of a point less allocated.
func FastWeights() Weights { return score.FastWeights() }

// The parts of quotas; package quota explains them.
type (
	Charge     = quota.Charge
	Queue      = quota.Queue
	Quotas     = quota.Quotas
	QuotaError = quota.Error
)

// ErrQuota is wrapped when a queue's limit forbids a placement.
var ErrQuota = quota.ErrOver

// NewQuotas checks queues; see [quota.New].
func NewQuotas(queues []Queue) (*Quotas, error) { return quota.New(queues) }
