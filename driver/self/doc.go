// SPDX-License-Identifier: MPL-2.0

// Package self serves the sockets by which tasks ask about their own share of a GPU.
//
// Every client is taken for a hostile tenant. A Socket belongs to one task, and requests on
// it are answered for that task alone; the kernel says whether the process at the other end
// is one of the task's. Each socket bounds what a tenant can cost: a request's size and time, how
// many are answered at once, and how many in a second. Requests beyond that wait in the
// kernel, before anything is accepted, so a flood delays its own sender only.
//
// The directory of a socket lies where no task can write, and is mounted read-only in the
// container. So a driver that takes a task up again replaces its predecessor's socket with
// its own, under the same name, and the task finds it.
package self
