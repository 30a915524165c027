// SPDX-License-Identifier: MPL-2.0

// Package score is what a placement is worth. The policies BALANCED, PACK and SPREAD are each
// a value in a file of its own, with its formula; every number is in weights.go.
//
// A [Scorer] has learned a demand and knows the prices of the moment. For a [Task] it chooses
// the GPUs of a pool ([Scorer.Chosen]) and computes the effect and the worth of that. An
// [Index] remembers this for every class of pools, and finds the best.
package score
