// Package device is Nomad's device plugin for GPUs: it tells Nomad what GPUs,
// slices, replicas and MIG instances a node has and how well they are, and hands
// them out.
//
//	              backend (device/nvidia on real or simulated hardware)
//	                 │ hardware.Machine, events, readings
//	config ──► reconciler ──► plan ──► units ──► groups ──► Nomad (Fingerprint)
//	                 │                   │
//	   device registry (outlives a       ├──► state files ──► the task driver
//	     reboot), operator flags,        ├──► instance index ──► Reserve
//	   leases (what the driver runs)     ├──► monitor ──► Stats, metrics
//	                                     └──► MPS daemons (device/mps)
//
// The reconciler works every few seconds and whenever something happens. Each
// pass surveys the hardware, decides on a plan, prepares what it needs, and
// publishes it. Reserve and Fingerprint read what was published last and never
// wait for hardware; Stats and metrics ask the devices for their readings, with
// a bound on each answer.
package device
