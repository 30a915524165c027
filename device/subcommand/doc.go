// SPDX-License-Identifier: MPL-2.0

// Package subcommand is what the task driver asks of NVIDIA's driver, by running the
// plugin's binary: only the plugin talks to NVML and CUDA, in a process that can hang and
// be killed.
//
//	Limiter, Suspender ──► state files ──► the task driver ──► the plugin's binary with
//	                                                           MemoryLimits or Checkpoint
//	                                                               └──► RunMemoryLimits,
//	                                                                    RunCheckpoint
package subcommand
