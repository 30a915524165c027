// SPDX-License-Identifier: MPL-2.0

// Package nomad is where the placement service touches Nomad, and the only
// place that does.
//
//	Watch ──► Mirror ──► []Change ──► a Sink      what the cluster is
//	Stats ──► measured utilization                what its GPUs do
//	Store ──► Nomad Variables, compare-and-set    what must survive
//	Lock  ──► who leads
//	Actor ──► jobs revised, allocs stopped        what is carried out
//
// Nomad is the referee: everything here can be thrown away and read again.
// Lists are read at the start, after every reconnect and every few minutes, page by page; the event
// stream is applied by index meanwhile and in between. Nomad's event buffer is short and skips
// silently, so a stream that broke is never resumed; and a stream never has namespaces that were
// made after it was opened, so another is opened for those.
//
// Job, alloc and node are cut down to what placement needs, because a service
// that watches 10,000 allocs should not hold 10,000 job files.
package nomad
