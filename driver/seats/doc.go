// SPDX-License-Identifier: MPL-2.0

// Package seats decides which tasks are on a GPU whose tasks step aside for each other
// (sharing = "suspend"), and sees to it that they are.
//
//	Next (pure)     who leaves, who comes: from the seats, the measurements, the rules, the time
//	Controller      does it, one step at a time, over a Host; writes down each step before
//
// As many tasks are resident as fit, each with its measured memory and some
// headroom. Those that want to come are served by priority, then by how long they have
// waited. A resident steps aside when it is idle, when its turn is over, or for a task of
// higher priority. Turns are as long as switching demands: of the time that they divide,
// a tenth at most goes into moving memory, unless the operator says otherwise. A task that has
// waited longer than the rules allow comes first, and keeps its turn.
//
// Whether a suspended task wants the GPU is not known for certain: its program waits in
// a CUDA call, or for its user. Who left while it computed wants to come back. Who
// left idle gets a trial: a turn that ends early if the task does not use it. Trials that
// were in vain become rarer.
package seats
