// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

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

// protocolChoice is the protocol that a device's daemon is to have, and why.
type protocolChoice struct {
	wanted Protocol
	reason string
}

// chooseProtocol finds out which protocol the daemon is to have. The control program is
// asked: a driver is upgraded under the plugin.
func (k *keeper) chooseProtocol(ctx context.Context) error {
	spec := k.wanted()
	if spec.Protocol == ProtocolV2 {
		k.protocol = protocolChoice{ProtocolV2, spec.ProtocolReason}
		return nil
	}
	found, err := mpsctl.Detect(ctx, k.control.Program, k.control.Control)
	switch {
	case err != nil:
		return fmt.Errorf("ask the MPS control program for its protocols: %w", err)
	case found:
		k.protocol = protocolChoice{ProtocolV3, "the control program has protocol 3"}
		return nil
	case spec.Protocol == ProtocolV3:
		return &actionError{
			reason: "the MPS of this driver has no protocol 3 (mps { protocol = \"3\" })",
			action: "install a driver of branch 615 or newer, or write protocol = \"auto\"",
		}
	}
	k.protocol = protocolChoice{ProtocolV2, "the control program has no protocol 3, which came with branch 615"}
	return nil
}

func (k *keeper) dialectOf(p Protocol) dialect {
	if p == ProtocolV3 {
		return namespaced{k.legacy()}
	}
	return k.legacy()
}

var errOtherProtocol = &actionError{
	reason: "its control daemon has another MPS protocol than is wanted",
	action: "it is replaced when no task is on the device",
}

// keepOtherProtocol returns a daemon that has tasks, although another protocol is wanted.
func (k *keeper) keepOtherProtocol(found process) (process, error) {
	switch {
	case k.replacing && k.deviceEmpty():
		k.ended = fmt.Sprintf("it was replaced by one of MPS protocol %d", k.protocol.wanted)
		return process{}, fmt.Errorf("process %d: %w", found.PID, procs.ErrGone)
	case k.replacing:
		return process{}, errOtherProtocol
	}
	k.log.Info("the MPS control daemon has another protocol than is wanted: it is replaced when no task is on the device",
		"device", k.control.uuid, "pid", found.PID, "protocol", int(protocolOf(found.PID)), "wanted", int(k.protocol.wanted))
	return found, nil
}
