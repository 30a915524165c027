// Package mps keeps CUDA MPS control daemons running: one for each device whose
// tasks share through MPS.
//
// A daemon outlives the plugin that started it, because the tasks on it do. So
// the supervisor adopts what it finds, by the daemon's own PID file and its
// answers, and starts one only where none lives. It confirms limits before it
// calls a daemon ready, looks every second whether it lives and every few
// seconds whether it answers truthfully, and replaces one that does not.
//
//	Want(specs) ──► a keeper per device ──► adopt or start ──► limits set and
//	                                         read back ──► ready ──► watch
//
// Nothing here waits for a daemon on the caller's time: Want and Status return
// at once.
package mps
