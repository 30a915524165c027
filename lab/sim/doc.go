// SPDX-License-Identifier: MPL-2.0

// Package sim replays workloads through the placement core and measures how
// the GPUs are used.
//
// [Replay] is the protocol of the published comparisons on Alibaba's openb
// traces: tasks arrive one by one, never leave and are tried once, until more
// has arrived than the cluster holds. The metric is the GPU share allocated
// when 100% and 130% of the capacity has arrived. [Placer] is the policy under
// test: the product's planner, or one of the baselines of this package
// ([NewFGD], [NewBestFit], [NewRandom]), which share no code with it.
//
// [Live] adds departures, priorities, quotas and preemption. [Generate] makes
// a workload of its own, so that everything runs without the traces.
package sim
