// SPDX-License-Identifier: MPL-2.0

// Package evict is whose work goes so that a request gets a place: victims of the lowest
// priority, as few as possible, of the queues that are last in the order, with the least work
// lost. An [Eviction] is one question; [Gains] remembers for many on which nodes the answer
// would be that there is room then.
package evict
