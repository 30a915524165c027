// SPDX-License-Identifier: MPL-2.0

// Package checkpoint suspends the processes of a task: their GPU memory goes to the
// host, the GPU is another's, and later all of it comes back. It is what a program of
// the plugin does for the task driver (see internal/gpu, CheckpointRequest), over the
// few calls that CUDA's driver has for it.
//
//	running ─ Lock ─► locked ─ Checkpoint ─► checkpointed
//	   ▲                │ ▲                       │
//	   └──── Unlock ────┘ └─────── Restore ───────┘     Restore without room: failed, for good
//
// The program can hang in any call and be killed there. So each action begins with
// what states the processes are in, and can be asked for again whatever came of it
// before: Suspend and Resume go on where they find things. The processes of a task go
// together. None is suspended where one cannot be locked, and none goes on before all
// have their memory back.
//
// A restore that finds no room loses the process. So Resume locks the neighbors first,
// which then cannot take memory, and only looks for room after that.
package checkpoint
