// SPDX-License-Identifier: MPL-2.0

// Package forecast expects what a cluster will be asked for and what that makes of
// its GPUs: the demand ([Demand]), whether tasks end ([Turnover]), how much of a
// node's GPUs will stay idle for good ([Waste]), what models and room for several
// GPUs are worth to those who will need them ([Prices], [Places]).
//
// It knows no nodes and no requests: GPUs that are alike are a kind, by number, and
// what asks for them is a [Shape]. Amounts of GPU are in milli, 1000 is one GPU.
package forecast

import "iter"

const gpuMilli = 1000

// MaxGPUs is how many like GPUs a node has at most.
const MaxGPUs = 64

// FirstReview is the number of arrivals after which the demand is first reviewed; from
// then on whenever their number has doubled.
const FirstReview = 100

// Shape describes tasks that are all alike.
type Shape struct {
	CPU, Memory int64
	GPUs        int
	Milli       int64 // of all its GPUs
	Whole       bool  // takes GPUs for itself
	Bound       bool  // says which models it may run on
	// Takes is the usable milli that a task takes of a GPU of a kind; ok is false
	// where the kind cannot hold it.
	Takes func(kind int32) (share int32, ok bool)
	// Parts is that in compute and memory, each in milli; nil: both are as Takes says.
	Parts func(kind int32) (compute, memory int32)

	entry int // in the demand, plus one; 0: none
}

// InDemand reports whether the demand holds a task of the shape.
func (sh *Shape) InDemand() bool { return sh.entry > 0 }

// Size is the most of everything that an empty node of a kind has.
type Size struct {
	CPU, Memory int64
	GPUs        int
}

// Kind is what there is of one kind of GPU.
type Kind struct {
	Free    int64         // usable milli
	Idle    map[int32]int // number of pools, by the number of their idle GPUs
	Largest Size
}

// Pool is the GPUs of one kind on one node.
type Pool struct {
	Kind                int32
	GPUs, Idle          int32
	CPU, Memory         int64 // free on the node
	NodeCPU, NodeMemory int64
	Residents           int // tasks on the node
}

// Supply is what a cluster has.
type Supply struct {
	Kinds []Kind
	Pools iter.Seq2[Pool, int] // and how many are so
}

// Free is the usable milli of all kinds.
func (s *Supply) Free() float64 {
	var sum int64
	for i := range s.Kinds {
		sum += s.Kinds[i].Free
	}
	return float64(sum)
}
