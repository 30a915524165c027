// SPDX-License-Identifier: MPL-2.0

package mps

import "context"

// Protocol is which MPS protocol a daemon has.
type Protocol int

// The protocols that there are. ProtocolAuto is 3 where the control program has it.
const (
	ProtocolAuto Protocol = 0
	ProtocolV2   Protocol = 2
	ProtocolV3   Protocol = 3
)

// dialect is how a daemon is spoken to.
type dialect interface {
	// options are the command lines that may start such a daemon, the best first, and makes
	// the files that they name.
	options() ([][]string, error)
	// prepare gives the daemon and its server their limits, starts a missing server, and
	// returns their features.
	prepare(context.Context, Spec) (features, error)
	// confirm asks whether all is as prepare left it. A server other than the known one
	// has lost the partitions of its tasks; 0 is none.
	confirm(ctx context.Context, spec Spec, known int) error
}

// features are what a daemon and its server can do, which depends on the branch.
type features struct {
	// server is the process ID of the server that takes clients.
	server                int
	multiUser, priorities bool
	partitioning          Partitioning
	// protocol is ProtocolV3 where tasks have namespaces, and multiprocessors the device's.
	protocol        Protocol
	multiprocessors int
}
