// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// locate returns the daemon that lives. One that an earlier release started, without
// a gate, or one that divides its multiprocessors in another way than is wanted, is kept
// while tasks may be on the device, and replaced when none is.
func (k *keeper) locate() (process, error) {
	k.control = k.control.in(dirsIn(filepath.Dir(k.control.dirs.base), k.control.uuid))
	found, err := k.control.find()
	if err == nil {
		return k.keepOrReplace(found)
	}
	if !errors.Is(err, procs.ErrGone) {
		return found, err
	}
	old := k.control.in(k.control.dirs.withoutGate())
	ungated, problem := old.find()
	switch {
	case problem != nil:
		return found, err
	case k.replacing && k.deviceEmpty():
		k.ended = "an earlier release had started it without a gate, and it was replaced"
		return found, err // the rest of it is ended before another starts
	case k.replacing:
		return found, errUngated
	}
	k.log.Warn("the MPS control daemon was started by an earlier release: until no task is on the device and it is replaced, tasks reach it without a gate",
		"device", k.control.uuid, "pid", ungated.PID)
	k.control = old
	return ungated, nil
}

// errUngated means that a daemon of an earlier release is about to be replaced.
var errUngated = &actionError{
	reason: "its control daemon was started by an earlier release, which gave tasks all of its socket",
	action: "it is replaced when no task is on the device",
}

// keepOrReplace returns a daemon, or procs.ErrGone where it is to be replaced now because it
// divides the multiprocessors in another way than is wanted.
func (k *keeper) keepOrReplace(found process) (process, error) {
	static := staticDaemon(found.PID)
	switch {
	case protocolOf(found.PID) != k.protocol.wanted:
		return k.keepOtherProtocol(found)
	case static == k.control.static:
		return found, nil
	case k.replacing && k.deviceEmpty():
		k.ended = "it was replaced by one that divides the multiprocessors in another way"
		return process{}, fmt.Errorf("process %d: %w", found.PID, procs.ErrGone)
	case k.replacing:
		return process{}, errOtherPartitioning
	}
	k.log.Info("the MPS control daemon divides the multiprocessors in another way than is wanted: it is replaced when no task is on the device",
		"device", k.control.uuid, "pid", found.PID, "static_partitioning", static)
	return found, nil
}

// outdated says why the daemon is to be replaced when no task is on the device.
func (k *keeper) outdated() error {
	switch {
	case k.control.dirs.ungated():
		return errUngated
	case protocolOf(k.process().PID) != k.protocol.wanted:
		return errOtherProtocol
	case staticDaemon(k.process().PID) != k.control.static:
		return errOtherPartitioning
	}
	return nil
}

// clearLeftovers ends what no socket leads to, so that another daemon can start.
// A control daemon that lives although its socket is gone may have tasks: they
// come first. Servers whose daemon has died can no longer be asked or limited.
func (k *keeper) clearLeftovers() error {
	if daemon := k.readRecord().Process; slices.Contains(k.control.running(roleDaemon), daemon) && !k.deviceEmpty() {
		return &actionError{
			reason: fmt.Sprintf("process %d, its control daemon, lives, but its socket %s was removed", daemon.PID, k.control.dirs.socket()),
			action: "it is replaced when no task is on the device any more",
		}
	}
	return k.control.endLeftovers(k.log)
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
