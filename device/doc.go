// Package device is Nomad's device plugin for GPUs: it tells Nomad what GPUs,
// slices, turns and MIG instances a node has and how well they are, and hands
// them out.
//
//	            backend (device/nvml on real or simulated hardware)
//	               │ hardware.Machine, events, readings
//	config ──► engine ──► plan (pure) ──► units ──► groups ──► Nomad (Fingerprint)
//	               │                        │
//	   ledger (what must outlive a reboot)  ├──► state files ──► the task driver
//	   leases (what the driver runs)        ├──► Reserve, Stats, metrics
//	                                        └──► MPS daemons (device/mps)
//
// The engine turns over every few seconds and whenever something happens. Each
// turn surveys the hardware, decides on a plan, and publishes it; Reserve and
// Fingerprint read what was published last and never wait for hardware.
package device
