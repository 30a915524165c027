// SPDX-License-Identifier: MPL-2.0

// Package record is what the driver writes down about its containers, so that it finds
// them again after any crash: labels, by which containers are found; a Record, which
// containerd keeps with a container; how it ended; and a Store of the same on the host,
// for as long as containerd is away.
package record
