// Package place decides where GPU work runs. A snapshot of the cluster and a
// request go in; a placement with its score, or the reasons why there is none,
// come out.
//
// The package is pure: it knows no Nomad, network, clock, file or process.
// Times are passed in. The same snapshot, demand and request always give the
// same answer; ties go to the node that was added to the snapshot first, and
// within a node to the GPU with the lowest index.
//
// A reader's path through the package:
//
//   - [Node], [GPU] and [Usage] describe a cluster; [Snapshot] holds one and
//     is updated in place: [Snapshot.AddNode], [Snapshot.Apply],
//     [Snapshot.Release]. Release undoes Apply exactly.
//   - [Request] is what a task asks for. Memory is counted in slices, compute
//     is planned in milli (1000 = one GPU).
//   - [Planner] answers: [Planner.Place] for one task, [Planner.PlaceGang] for
//     tasks that start together, [Planner.Preempt] when room must be made,
//     [Planner.Rebalance] for moves that would pay.
//   - [Weights] and [Policy] say what "best" means; every number is in
//     weights.go, and each policy with its formula in a file of its own.
//
// Below it are four packages, each of which can be read alone: ranking (the best
// of many scores, kept up to date), forecast (demand, lifetimes, waste, prices),
// quota (queues, guarantees, who yields to whom) and splitmix (random draws).
//
// GPUs of one node that are alike (model, mode, memory, sharing) form a pool.
// A task's GPUs always come from one pool, so that they are equal; a node with
// one kind of GPU, the usual case, is one pool. Pools in the same state form a
// class, which is evaluated once per shape of request; see class.go and index.go.
package place
